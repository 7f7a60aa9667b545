#include "backend/nccl/nccl_backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "arithmetic/reduce.h"
#include "backend/nccl/nccl_types.h"
#include "base/check.h"

namespace rabit {
namespace {

// How long a rank that waits for an identity does not look whether it is to give up.
constexpr auto kLookEvery = std::chrono::milliseconds(100);
constexpr size_t kScalarBytesMax = 8;

nccl::Stream StreamOf(const LaneContext& lane) {
  return static_cast<nccl::Stream>(lane.place->stream);
}

bool AreEven(std::span<const int64_t> parts) {
  return std::all_of(parts.begin(), parts.end(), [&](int64_t part) { return part == parts[0]; });
}

// The first failure of a row of calls.
class Each {
 public:
  void operator()(nccl::Result result) {
    // A communicator that does not block answers "in progress", which is no failure.
    if (first_ == nccl::kSuccess && result != nccl::kInProgress) first_ = result;
  }
  nccl::Result first() const { return first_; }

 private:
  nccl::Result first_ = nccl::kSuccess;
};

// A number as a value of the type.
std::array<std::byte, kScalarBytesMax> ScalarOf(DType dtype, double number) {
  std::array<std::byte, kScalarBytesMax> scalar{};
  // One is an exponent of zero in every float: the product is the number, rounded once.
  constexpr uint16_t kHalfOne = 0x3c00, kBrainOne = 0x3f80;
  constexpr float kOne = 1.0f;
  constexpr double kLongOne = 1.0;
  const void* one = &kOne;
  if (dtype == DType::kFloat16) one = &kHalfOne;
  if (dtype == DType::kBfloat16) one = &kBrainOne;
  if (dtype == DType::kFloat64) one = &kLongOne;
  std::memcpy(scalar.data(), one, SizeOf(dtype));
  Scale(dtype, scalar.data(), scalar.data(), 1, number);
  return scalar;
}

}  // namespace

NcclBackend::NcclBackend(std::shared_ptr<const NcclLibrary> library, Store* store,
                         NcclOptions options)
    : library_(std::move(library)), store_(store), options_(std::move(options)) {}

NcclBackend::~NcclBackend() {
  // The thread uses members of this backend.
  if (closer_.joinable()) closer_.join();
  NcclCommunicator::CloseAll(Communicators());
}

NcclCommunicator::Several NcclBackend::Communicators() const {
  MutexLock lock(mutex_);
  NcclCommunicator::Several all;
  for (const auto& [group, communicators] : groups_) {
    for (const auto& [ranks, communicator] : communicators) all.push_back(communicator);
  }
  for (const NcclCommunicator::Several& removed : removed_) {
    all.insert(all.end(), removed.begin(), removed.end());
  }
  return all;
}

Status NcclBackend::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

Status NcclBackend::Explained(const Status& status) const {
  if (status.ok()) return status;
  const Status why = failure();
  return why.ok() ? status : why;
}

Status NcclBackend::AddGroup(const Group&) { return failure(); }

void NcclBackend::RemoveGroup(const Group& group) {
  {
    MutexLock lock(mutex_);
    const auto found = groups_.find(group.id);
    if (found == groups_.end()) return;
    NcclCommunicator::Several& removed = removed_.emplace_back();
    // Closing a communicator waits for its ranks and its stream, and this is the engine thread:
    // another thread does it.
    for (const auto& [ranks, communicator] : found->second) removed.push_back(communicator);
    groups_.erase(found);
    if (std::exchange(closes_, true)) return;
  }
  if (closer_.joinable()) closer_.join();  // it has nothing left to do
  closer_ = std::thread([this] { CloseRemoved(); });
}

void NcclBackend::CloseRemoved() {
  for (;;) {
    NcclCommunicator::Several next;
    {
      MutexLock lock(mutex_);
      closes_ = !removed_.empty();
      if (!closes_) return;
      next = removed_.front();  // which Abort finds as long as it is not closed
    }
    // Without the lock: it may wait for seconds, and Abort must not wait for it.
    NcclCommunicator::CloseAll(next);
    MutexLock lock(mutex_);
    removed_.pop_front();
  }
}

Result<std::shared_ptr<NcclCommunicator>> NcclBackend::CommunicatorOf(const LaneContext& lane) {
  const Group& group = lane.group;
  const DevicePlace& place = *lane.place;
  std::shared_ptr<NcclCommunicator> communicator;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    std::shared_ptr<NcclCommunicator>& known = groups_[group.id][group.ranks];
    if (known != nullptr) {
      const int device = known->device();
      // Only the lane thread that runs the group's bucket comes here, but several groups do at
      // once, hence the lock.
      if (device == place.device) return known;
      return InvalidArgument(
          "the tensor is on cuda:" + std::to_string(place.device) + ", and rank " +
          std::to_string(options_.rank) + " has brought cuda:" + std::to_string(device) +
          " to group " + std::to_string(group.id) +
          " before: with NCCL a rank has one device in a group; call torch.cuda.set_device(" +
          std::to_string(device) + "), or name the backend builtin");
    }
    communicator = std::make_shared<NcclCommunicator>(library_, place.driver, place.device);
    // It is entered before it is open, so that an abort finds it while it waits for the other
    // ranks.
    known = communicator;
  }
  // Opening is a collective call of all ranks: it has a limit of its own, since a rank may never
  // come.
  const Deadline latest = After(std::chrono::milliseconds(options_.open_ms));
  RABIT_RETURN_IF_ERROR(Open(*communicator, group, std::min(latest, lane.deadline)));
  return communicator;
}

Status NcclBackend::Open(NcclCommunicator& communicator, const Group& group, Deadline deadline) {
  const std::string key =
      // A group and a pair within it have the same id, so the ranks belong to the key.
      options_.key + "/nccl/" + std::to_string(group.id) + "/" + RankList(group.ranks);
  RABIT_ASSIGN_OR_RETURN(const nccl::UniqueId identity, IdentityOf(group, key, deadline));
  const Status status = communicator.Open(identity, group.my_index, group.size(), deadline);
  if (status.ok()) return status;
  return Status(status.code(), "the NCCL communicator of group " + std::to_string(group.id) +
                                   " with ranks " + RankList(group.ranks) + ": " + status.message())
      .WithCulprit(status.culprit());
}

Result<nccl::UniqueId> NcclBackend::Publish(const std::string& key) {
  nccl::UniqueId identity{};
  const nccl::Result result = library_->ncclGetUniqueId(&identity);
  const Status status =
      result == nccl::kSuccess ? Status() : library_->Failed("ncclGetUniqueId", result, nullptr);
  // An error is published too: the other ranks would otherwise wait until the deadline for an
  // identity that never comes.
  if (store_ != nullptr) {
    const std::string text = status.ok()
                                 ? "=" + std::string(identity.internal, sizeof identity.internal)
                                 : "!" + status.message();
    RABIT_RETURN_IF_ERROR(store_->Set(key, text));
  }
  RABIT_RETURN_IF_ERROR(status);
  return identity;
}

Result<nccl::UniqueId> NcclBackend::IdentityOf(const Group& group, const std::string& key,
                                               Deadline deadline) {
  if (group.my_index == 0) return Publish(key);
  for (;;) {
    // The wait is cut into short ones, so that a rank that waits here notices the abort of the job.
    RABIT_RETURN_IF_ERROR(failure());
    const Deadline next = std::min(After(kLookEvery), deadline);
    Result<std::string> found = store_->Get(key, next);
    if (found.ok() && found->starts_with('!')) {
      return Internal("rank " + std::to_string(group.ranks[0]) + ": " + found->substr(1))
          .WithCulprit(group.ranks[0]);
    }
    nccl::UniqueId identity{};
    // The value comes from another rank, and is copied into a structure of fixed size.
    if (found.ok() && found->size() == 1 + sizeof identity.internal) {
      std::memcpy(identity.internal, found->data() + 1, sizeof identity.internal);
      return identity;
    }
    if (found.ok()) return Internal("the identity of '" + key + "' is malformed; report this");
    if (found.status().code() != Code::kTimedOut) return found.status();
    if (std::chrono::steady_clock::now() < deadline) continue;
    return TimedOut("rank " + std::to_string(group.ranks[0]) +
                    " has not begun the NCCL communicator of group " + std::to_string(group.id) +
                    ": " + found.status().message())
        .WithCulprit(group.ranks[0]);
  }
}

Status NcclBackend::Run(const char* what, const LaneContext& lane, const Calls& calls) {
  // The router sends only buckets of devices here; a pointer of the host would end in a fault on
  // the device.
  RABIT_CHECK(lane.place != nullptr, "NCCL is given memory of the host");
  RABIT_RETURN_IF_ERROR(failure());
  Result<std::shared_ptr<NcclCommunicator>> communicator = CommunicatorOf(lane);
  if (!communicator.ok()) return Explained(communicator.status());
  const auto grouped = [&](nccl::Comm comm) {
    Each each;
    // A group makes NCCL launch all calls at once: sends and receives one by one would wait for
    // each other.
    each(library_->ncclGroupStart());
    if (each.first() != nccl::kSuccess) return each.first();
    each(calls(comm, StreamOf(lane)));
    // A group that was begun must be ended even if a call in it failed, or the thread's next call
    // belongs to it.
    const nccl::Result ended = library_->ncclGroupEnd();
    return each.first() == nccl::kSuccess ? ended : each.first();
  };
  return Explained((*communicator)->Make(what, grouped, lane.deadline));
}

Status NcclBackend::RunBetween(const char* what, const LaneContext& lane, int peer,
                               const PairCalls& calls) {
  const Group& group = lane.group;
  Group pair{group.id, {options_.rank, group.ranks[static_cast<size_t>(peer)]}};
  // Both ranks must name the pair alike, whoever sends.
  std::sort(pair.ranks.begin(), pair.ranks.end());
  pair.my_index = pair.IndexOf(options_.rank);
  const LaneContext between{lane.lane,   lane.tag,       lane.deadline, pair,
                            lane.waiter, lane.algorithm, lane.place};
  return Run(what, between, [&](nccl::Comm comm, nccl::Stream stream) {
    return calls(comm, stream, 1 - pair.my_index);
  });
}

Status NcclBackend::RunReduction(const char* what, const LaneContext& lane, DType dtype,
                                 ReduceOp op, const Reduction& calls) {
  const std::optional<nccl::RedOp> known = NcclOpOf(op);
  const std::optional<nccl::DataType> type = NcclTypeOf(dtype);
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  const double factor = lane.place->factor;
  if (!known || !type || (factor != 1.0 && (!is_sum || !IsFloat(dtype)))) {
    return Unsupported("NCCL has no " + std::string(Name(op)) + " of " + std::string(Name(dtype)) +
                       " times " + std::to_string(factor) + "; use another backend for it");
  }
  if (factor == 1.0) {
    return Run(what, lane,
               [&](nccl::Comm comm, nccl::Stream stream) { return calls(comm, stream, *known); });
  }
  // NCCL multiplies the inputs before it adds, so an average is a sum of shares.
  const double share = op == ReduceOp::kAverage ? factor / lane.group.size() : factor;
  auto scalar = ScalarOf(dtype, share);
  Result<std::shared_ptr<NcclCommunicator>> communicator = CommunicatorOf(lane);
  if (!communicator.ok()) return Explained(communicator.status());
  // An operator belongs to a communicator, and is made and destroyed around each call: the factor
  // may differ every time.
  nccl::RedOp made = nccl::kSum;
  RABIT_RETURN_IF_ERROR(Explained((*communicator)
                                      ->Make(
                                          "ncclRedOpCreatePreMulSum",
                                          [&](nccl::Comm comm) {
                                            return library_->ncclRedOpCreatePreMulSum(
                                                &made, scalar.data(), *type,
                                                nccl::kScalarHostImmediate, comm);
                                          },
                                          lane.deadline)));
  const Status status = Run(
      what, lane, [&](nccl::Comm comm, nccl::Stream stream) { return calls(comm, stream, made); });
  if (!status.ok()) return status;
  return Explained((*communicator)
                       ->Make(
                           "ncclRedOpDestroy",
                           [&](nccl::Comm comm) { return library_->ncclRedOpDestroy(made, comm); },
                           lane.deadline));
}

Operation NcclBackend::Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) {
  const auto count = static_cast<size_t>(in_out.count);
  if (count == 0) return Status();
  return RunReduction("ncclAllReduce", lane, in_out.dtype, op,
                      [&](nccl::Comm comm, nccl::Stream stream, nccl::RedOp with) {
                        return library_->ncclAllReduce(in_out.data, in_out.data, count,
                                                       *NcclTypeOf(in_out.dtype), with, comm,
                                                       stream);
                      });
}

Operation NcclBackend::Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                              int root) {
  const auto count = static_cast<size_t>(in_out.count);
  if (count == 0) return Status();
  return RunReduction("ncclReduce", lane, in_out.dtype, op,
                      [&](nccl::Comm comm, nccl::Stream stream, nccl::RedOp with) {
                        return library_->ncclReduce(in_out.data, in_out.data, count,
                                                    *NcclTypeOf(in_out.dtype), with, root, comm,
                                                    stream);
                      });
}

// NCCL's own wants equal parts.
Operation NcclBackend::ReduceScatter(const LaneContext& lane, const TensorView& in,
                                     const TensorView& out, std::span<const int64_t> part_counts,
                                     ReduceOp op) {
  if (in.count == 0) return Status();
  const auto* const from = static_cast<const std::byte*>(in.data);
  return RunReduction(
      "ncclReduceScatter", lane, in.dtype, op,
      [&](nccl::Comm comm, nccl::Stream stream, nccl::RedOp with) {
        const nccl::DataType type = *NcclTypeOf(in.dtype);
        // Where parts differ, one reduction for each root takes its place; in one group they run at
        // once.
        if (AreEven(part_counts)) {
          return library_->ncclReduceScatter(from, out.data, static_cast<size_t>(part_counts[0]),
                                             type, with, comm, stream);
        }
        Each each;
        size_t offset = 0;
        for (int root = 0; root < lane.group.size(); ++root) {
          const auto count = static_cast<size_t>(part_counts[static_cast<size_t>(root)]);
          void* const to = root == lane.group.my_index ? out.data : nullptr;
          if (count > 0) {
            each(library_->ncclReduce(from + offset, to, count, type, with, root, comm, stream));
          }
          offset += count * SizeOf(in.dtype);
        }
        return each.first();
      });
}

// The same.
Operation NcclBackend::Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                                 std::span<const int64_t> part_bytes) {
  if (all.empty()) return Status();
  return Run("ncclAllGather", lane, [&](nccl::Comm comm, nccl::Stream stream) {
    if (AreEven(part_bytes)) {
      return library_->ncclAllGather(mine.data(), all.data(), mine.size(), nccl::kUint8, comm,
                                     stream);
    }
    Each each;
    std::byte* to = all.data();
    for (int root = 0; root < lane.group.size(); ++root) {
      const auto bytes = static_cast<size_t>(part_bytes[static_cast<size_t>(root)]);
      const void* const from = root == lane.group.my_index ? mine.data() : to;
      if (bytes > 0) {
        each(library_->ncclBroadcast(from, to, bytes, nccl::kUint8, root, comm, stream));
      }
      to += bytes;
    }
    return each.first();
  });
}

Operation NcclBackend::Broadcast(const LaneContext& lane, Bytes buffer, int root) {
  if (buffer.empty()) return Status();
  return Run("ncclBroadcast", lane, [&](nccl::Comm comm, nccl::Stream stream) {
    return library_->ncclBroadcast(buffer.data(), buffer.data(), buffer.size(), nccl::kUint8, root,
                                   comm, stream);
  });
}

Operation NcclBackend::Alltoall(const LaneContext& lane, ConstBytes in,
                                std::span<const int64_t> send_bytes, Bytes out,
                                std::span<const int64_t> receive_bytes) {
  return Run("ncclSend and ncclRecv", lane, [&](nccl::Comm comm, nccl::Stream stream) {
    Each each;
    const std::byte* from = in.data();
    std::byte* to = out.data();
    for (int peer = 0; peer < lane.group.size(); ++peer) {
      const auto sent = static_cast<size_t>(send_bytes[static_cast<size_t>(peer)]);
      const auto received = static_cast<size_t>(receive_bytes[static_cast<size_t>(peer)]);
      if (sent > 0) each(library_->ncclSend(from, sent, nccl::kUint8, peer, comm, stream));
      if (received > 0) each(library_->ncclRecv(to, received, nccl::kUint8, peer, comm, stream));
      from += sent;
      to += received;
    }
    return each.first();
  });
}

Operation NcclBackend::Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                              std::span<const int64_t> part_bytes, int root) {
  std::vector<int64_t> sent(part_bytes.size(), 0);
  sent[static_cast<size_t>(root)] = static_cast<int64_t>(mine.size());
  std::vector<int64_t> received(part_bytes.size(), 0);
  if (lane.group.my_index == root) received.assign(part_bytes.begin(), part_bytes.end());
  return Alltoall(lane, mine, sent, all, received);
}

Operation NcclBackend::Scatter(const LaneContext& lane, ConstBytes all,
                               std::span<const int64_t> part_bytes, Bytes mine, int root) {
  std::vector<int64_t> sent(part_bytes.size(), 0);
  if (lane.group.my_index == root) sent.assign(part_bytes.begin(), part_bytes.end());
  std::vector<int64_t> received(part_bytes.size(), 0);
  received[static_cast<size_t>(root)] = static_cast<int64_t>(mine.size());
  return Alltoall(lane, all, sent, mine, received);
}

Operation NcclBackend::Send(const LaneContext& lane, ConstBytes buffer, int peer) {
  if (buffer.empty()) return Status();
  return RunBetween("ncclSend", lane, peer, [&](nccl::Comm comm, nccl::Stream stream, int other) {
    return library_->ncclSend(buffer.data(), buffer.size(), nccl::kUint8, other, comm, stream);
  });
}

Operation NcclBackend::Recv(const LaneContext& lane, Bytes buffer, int peer) {
  if (buffer.empty()) return Status();
  return RunBetween("ncclRecv", lane, peer, [&](nccl::Comm comm, nccl::Stream stream, int other) {
    return library_->ncclRecv(buffer.data(), buffer.size(), nccl::kUint8, other, comm, stream);
  });
}

Status NcclBackend::Failure(const Group& group) {
  ByRanks communicators;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    const auto found = groups_.find(group.id);
    if (found != groups_.end()) communicators = found->second;
  }
  // Without the lock: asking takes that of the communicator, which a call may hold for long.
  for (const auto& [ranks, communicator] : communicators) {
    RABIT_RETURN_IF_ERROR(Explained(communicator->Failure()));
  }
  return Status();
}

void NcclBackend::Abort(Status why) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = std::move(why);
  }
  // After the failure is set, so that calls which end now report the cause and not the abort.
  NcclCommunicator::AbortAll(Communicators());
}

void NcclBackend::WriteStatistics(JsonWriter& json) const {
  library_->Write(json);
  MutexLock lock(mutex_);
  size_t made = 0;
  for (const auto& [group, communicators] : groups_) made += communicators.size();
  for (const NcclCommunicator::Several& removed : removed_) made += removed.size();
  json.Member("communicators", static_cast<int64_t>(made));
}

}  // namespace rabit

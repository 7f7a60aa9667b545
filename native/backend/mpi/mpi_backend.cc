#include "backend/mpi/mpi_backend.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace rabit {
namespace {

constexpr int64_t kCountMax = std::numeric_limits<int>::max();

int64_t Total(std::span<const int64_t> parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0});
}

// Counts and offsets in the form of the vector functions.
struct Parts {
  explicit Parts(std::span<const int64_t> sizes) {
    int64_t offset = 0;
    for (const int64_t size : sizes) {
      counts.push_back(static_cast<int>(size));
      offsets.push_back(static_cast<int>(offset));
      // The caller has seen to it that the sum fits into an int.
      offset += size;
    }
  }
  operator MpiParts() const { return {counts, offsets}; }

  std::vector<int> counts, offsets;
};

// Memory that MPI may use after a wait that ended early; it is then never freed.
template <class Content>
class LeftBehind {
 public:
  template <class... Arguments>
  explicit LeftBehind(Arguments&&... arguments)
      : content_(std::make_unique<Content>(std::forward<Arguments>(arguments)...)) {}
  Content& operator*() { return *content_; }
  Status After(Status status) {
    // MPI offers no way to take a collective back, so the memory stays with it.
    if (!status.ok()) (void)content_.release();
    return status;
  }

 private:
  std::unique_ptr<Content> content_;
};

// A null buffer means "in place" to MpiLibrary; an empty one may be null.
const std::byte* OrNothing(const std::byte* data) {
  static constexpr std::byte kNothing{};
  return data == nullptr ? &kNothing : data;
}
std::byte* OrNothing(std::byte* data) {
  return const_cast<std::byte*>(OrNothing(static_cast<const std::byte*>(data)));
}

std::string Printable(const std::string& text) {
  std::string kept;
  for (const char c : text) kept += c < ' ' || c > '~' || c == '"' || c == '\\' ? ' ' : c;
  return kept;
}

}  // namespace

MpiBackend::MpiBackend(std::shared_ptr<MpiJob> job, bool shares_hosts, MeetsInMpi meets_in_mpi)
    : job_(std::move(job)), shares_hosts_(shares_hosts), meets_in_mpi_(std::move(meets_in_mpi)) {}

Status MpiBackend::AddGroup(const Group& group) {
  // Making a communicator is collective: a group whose ranks do not all do it would hang there.
  return meets_in_mpi_(group) ? job_->AddGroup(group) : Status();
}

void MpiBackend::Abort(Status why) { job_->Abort(std::move(why)); }

template <class Start>
Status MpiBackend::Run(const LaneContext& lane, Kind kind, Start start) {
  // After an abort, other ranks do not enter the collective any more.
  if (job_->is_aborted()) return job_->failure();
  // Each lane has a communicator of its own: MPI matches collectives by their order, and lanes have
  // none between them.
  RABIT_ASSIGN_OR_RETURN(const MpiHandle comm, job_->CollectivesOf(lane.lane, lane.group));
  MpiHandle request = 0;
  RABIT_RETURN_IF_ERROR(start(comm, &request));
  return job_->Wait(&request, nullptr, Name(kind), lane.deadline);
}

Operation MpiBackend::Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) {
  return Run(lane, Kind::kAllreduce, [&](MpiHandle comm, MpiHandle* request) {
    const MpiHandles& handles = job_->handles();
    return job_->library().Iallreduce(in_out.data, static_cast<int>(in_out.count),
                                      handles.dtypes[static_cast<size_t>(in_out.dtype)],
                                      handles.ops[static_cast<size_t>(op)], comm, request);
  });
}

Operation MpiBackend::Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                             int root) {
  return Run(lane, Kind::kReduce, [&](MpiHandle comm, MpiHandle* request) {
    const MpiHandles& handles = job_->handles();
    return job_->library().Ireduce(in_out.data, static_cast<int>(in_out.count),
                                   handles.dtypes[static_cast<size_t>(in_out.dtype)],
                                   handles.ops[static_cast<size_t>(op)], root,
                                   lane.group.my_index == root, comm, request);
  });
}

Operation MpiBackend::ReduceScatter(const LaneContext& lane, const TensorView& in,
                                    const TensorView& out, std::span<const int64_t> part_counts,
                                    ReduceOp op) {
  struct Memory {
    explicit Memory(std::span<const int64_t> counts, size_t bytes) : parts(counts), out(bytes) {}
    Parts parts;
    std::vector<std::byte> out;  // MPI forbids that the output lies inside the input
  };
  LeftBehind<Memory> memory(part_counts, out.bytes());
  RABIT_RETURN_IF_ERROR(
      memory.After(Run(lane, Kind::kReduceScatter, [&](MpiHandle comm, MpiHandle* request) {
        const MpiHandles& handles = job_->handles();
        return job_->library().IreduceScatter(in.data, (*memory).out.data(), (*memory).parts.counts,
                                              handles.dtypes[static_cast<size_t>(in.dtype)],
                                              handles.ops[static_cast<size_t>(op)], comm, request);
      })));
  // After an error the memory stays behind with MPI, which may write to it still; then nothing is
  // copied.
  if (out.bytes() > 0) std::memcpy(out.data, (*memory).out.data(), out.bytes());
  return Status();
}

Operation MpiBackend::Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                                std::span<const int64_t> part_bytes) {
  LeftBehind<Parts> parts(part_bytes);
  const auto my_offset = (*parts).offsets[static_cast<size_t>(lane.group.my_index)];
  // MPI forbids that input and output overlap, and has a mark for the one case in which they may.
  const bool is_in_place = mine.data() == all.data() + my_offset;
  return parts.After(Run(lane, Kind::kAllgather, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Iallgatherv(is_in_place ? nullptr : OrNothing(mine.data()),
                                       static_cast<int>(mine.size()), all.data(), *parts, comm,
                                       request);
  }));
}

Operation MpiBackend::Broadcast(const LaneContext& lane, Bytes buffer, int root) {
  const auto bytes = static_cast<int>(buffer.size());
  return Run(lane, Kind::kBroadcast, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Ibcast(buffer.data(), bytes, root, comm, request);
  });
}

Operation MpiBackend::Alltoall(const LaneContext& lane, ConstBytes in,
                               std::span<const int64_t> send_bytes, Bytes out,
                               std::span<const int64_t> receive_bytes) {
  const int64_t bytes = std::max(Total(send_bytes), Total(receive_bytes));
  if (bytes > kCountMax) {
    // The router checks sizes that all ranks know; those of an alltoall are known here alone.
    return InvalidArgument("alltoall exchanges " + std::to_string(bytes) +
                           " bytes on this rank, and MPI counts to " + std::to_string(kCountMax) +
                           "; set RABIT_MPI_COLLECTIVES to auto");
  }
  struct Memory {
    Memory(std::span<const int64_t> sent, std::span<const int64_t> received)
        : sends(sent), receives(received) {}
    Parts sends, receives;
  };
  LeftBehind<Memory> memory(send_bytes, receive_bytes);
  return memory.After(Run(lane, Kind::kAlltoall, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Ialltoallv(in.data(), (*memory).sends, out.data(), (*memory).receives,
                                      comm, request);
  }));
}

Operation MpiBackend::Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                             std::span<const int64_t> part_bytes, int root) {
  LeftBehind<Parts> parts(part_bytes);
  const bool is_root = lane.group.my_index == root;
  const bool is_in_place =
      is_root && mine.data() == all.data() + (*parts).offsets[static_cast<size_t>(root)];
  return parts.After(Run(lane, Kind::kGather, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Igatherv(is_in_place ? nullptr : OrNothing(mine.data()),
                                    static_cast<int>(mine.size()), all.data(), *parts, root, comm,
                                    request);
  }));
}

Operation MpiBackend::Scatter(const LaneContext& lane, ConstBytes all,
                              std::span<const int64_t> part_bytes, Bytes mine, int root) {
  LeftBehind<Parts> parts(part_bytes);
  const bool is_root = lane.group.my_index == root;
  const bool is_in_place =
      is_root && mine.data() == all.data() + (*parts).offsets[static_cast<size_t>(root)];
  return parts.After(Run(lane, Kind::kScatter, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Iscatterv(all.data(), *parts,
                                     is_in_place ? nullptr : OrNothing(mine.data()),
                                     static_cast<int>(mine.size()), root, comm, request);
  }));
}

Operation MpiBackend::Barrier(const LaneContext& lane) {
  return Run(lane, Kind::kBarrier, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Ibarrier(comm, request);
  });
}

void MpiBackend::WriteStatistics(JsonWriter& json) const {
  const MpiHandles& handles = job_->handles();
  json.Member("rank", job_->options().rank).Member("library", Printable(handles.version));
  json.Member("transport", Printable(handles.transport));
  json.Member("thread_level", handles.is_serialized ? "serialized" : "multiple");
  json.Member("inside_host", shares_hosts_ ? "shm" : "mpi");
  json.Member("communicators", job_->communicators());
}

}  // namespace rabit

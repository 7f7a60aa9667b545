#include "backend/mpi/mpi_backend.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace rabit {
namespace {

// Above this the library's forms that return at once lose to our own algorithms (they are
// written for overlap rather than speed): 1 MiB on two ranks takes them twice as long.
constexpr int64_t kLibraryReduceBytesMax = 128 << 10;
constexpr int64_t kCountMax = std::numeric_limits<int>::max();
// Chosen only where no other backend accepts.
constexpr double kLastResortMicros = 1e12;
constexpr std::string_view kHierarchical = "hierarchical";

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

MpiBackend::MpiBackend(std::shared_ptr<MpiJob> job, std::unique_ptr<Backend> messages,
                       MpiOptions options, std::optional<HostLinks> host_links)
    : job_(std::move(job)),
      messages_(std::move(messages)),
      options_(options),
      host_links_(std::move(host_links)) {}

Status MpiBackend::AddGroup(const Group& group) {
  return StaysOnHost(group) ? Status() : job_->AddGroup(group);
}

void MpiBackend::Abort(Status why) {
  if (host_links_.has_value()) {
    host_links_->local.Abort(why);
    if (host_links_->across != nullptr) host_links_->across->Abort(why);
  }
  messages_->Abort(std::move(why));  // reaches the job
}

// ---- What runs where -------------------------------------------------------------------------

Result<double> MpiBackend::CostMicros(const CollectiveSpec& spec, const Group& group) const {
  if (spec.device.kind != DeviceKind::kCpu) {
    return Unsupported("backend 'mpi' works on memory of the host only; copy the tensor there");
  }
  RABIT_ASSIGN_OR_RETURN(const double cost, messages_->CostMicros(spec, group));
  // The user's choice decides, not a model of a network that we cannot see.
  return options_.is_default ? -1.0 : cost + kLastResortMicros;
}

bool MpiBackend::StaysOnHost(const Group& group) const {
  if (!host_links_.has_value()) return false;
  const Topology& topology = host_links_->topology;
  return std::all_of(group.ranks.begin(), group.ranks.end(),
                     [&](int rank) { return topology.SameHost(rank, group.ranks.front()); });
}

Backend& MpiBackend::OursFor(const Group& group) const {
  return StaysOnHost(group) ? host_links_->local : *messages_;
}

// Shared memory and MPI both move bytes only while somebody waits on them.  Of the algorithms,
// `hierarchical` alone is through with one before it begins with the other; in any other, ranks
// that wait on different ones could wait in a circle.
Backend& MpiBackend::OursForAllreduce(const CollectiveSpec& spec, const Group& group) const {
  if (StaysOnHost(group)) return host_links_->local;
  const bool can_cross = host_links_.has_value() && host_links_->across != nullptr;
  const bool crosses = can_cross && host_links_->across->AlgorithmFor(spec, group) == kHierarchical;
  return crosses ? *host_links_->across : *messages_;
}

bool MpiBackend::UsesLibrary(const Group& group, int64_t bytes) const {
  return options_.collectives != MpiCollectives::kMessages && group.size() > 1 &&
         bytes <= kCountMax && !StaysOnHost(group);
}

bool MpiBackend::ReducesInLibrary(const Group& group, DType dtype, ReduceOp op,
                                  int64_t bytes) const {
  if (!UsesLibrary(group, bytes) || options_.is_deterministic) return false;
  if (job_->handles().dtypes[static_cast<size_t>(dtype)] == 0 ||
      job_->handles().ops[static_cast<size_t>(op)] == 0) {
    return false;
  }
  // MPI has no 16-bit floats and no sum of bool, and does not say what a NaN does to a minimum.
  const bool is_order = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const bool is_unpromised = dtype == DType::kFloat16 || dtype == DType::kBfloat16 ||
                             dtype == DType::kBool || (IsFloat(dtype) && is_order);
  if (is_unpromised) return false;
  return options_.collectives == MpiCollectives::kLibrary || bytes <= kLibraryReduceBytesMax;
}

std::string MpiBackend::AlgorithmFor(const CollectiveSpec& spec, const Group& group) const {
  const int64_t bytes = spec.count * static_cast<int64_t>(SizeOf(spec.dtype));
  const bool is_reduction = spec.kind == Kind::kAllreduce || spec.kind == Kind::kReduce;
  const bool is_library = is_reduction ? ReducesInLibrary(group, spec.dtype, spec.op, bytes)
                                       : UsesLibrary(group, bytes);
  if (is_library) return "library";
  const bool is_allreduce = spec.kind == Kind::kAllreduce;
  const Backend& ours = is_allreduce ? OursForAllreduce(spec, group) : OursFor(group);
  return ours.AlgorithmFor(spec, group);
}

// ---- Running it ------------------------------------------------------------------------------

template <class Start>
Status MpiBackend::Run(const LaneContext& lane, Kind kind, int64_t bytes, Start start) {
  if (job_->is_aborted()) return job_->failure();
  RABIT_ASSIGN_OR_RETURN(const MpiHandle comm, job_->CollectivesOf(lane.lane, lane.group));
  MpiHandle request = 0;
  RABIT_RETURN_IF_ERROR(start(comm, &request));
  RABIT_RETURN_IF_ERROR(job_->Wait(&request, nullptr, Name(kind), lane.deadline));
  Counter& counter = counters_[static_cast<size_t>(kind)];
  counter.calls.fetch_add(1, std::memory_order_relaxed);
  counter.bytes.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
  return Status();
}

Status MpiBackend::Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) {
  const auto bytes = static_cast<int64_t>(in_out.bytes());
  if (!ReducesInLibrary(lane.group, in_out.dtype, op, bytes)) {
    const CollectiveSpec spec{Kind::kAllreduce, in_out.dtype, in_out.device, op, in_out.count};
    return OursForAllreduce(spec, lane.group).Allreduce(lane, in_out, op);
  }
  return Run(lane, Kind::kAllreduce, bytes, [&](MpiHandle comm, MpiHandle* request) {
    const MpiHandles& handles = job_->handles();
    return job_->library().Iallreduce(in_out.data, static_cast<int>(in_out.count),
                                      handles.dtypes[static_cast<size_t>(in_out.dtype)],
                                      handles.ops[static_cast<size_t>(op)], comm, request);
  });
}

Status MpiBackend::Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                          int root) {
  const auto bytes = static_cast<int64_t>(in_out.bytes());
  if (!ReducesInLibrary(lane.group, in_out.dtype, op, bytes)) {
    return OursFor(lane.group).Reduce(lane, in_out, op, root);
  }
  return Run(lane, Kind::kReduce, bytes, [&](MpiHandle comm, MpiHandle* request) {
    const MpiHandles& handles = job_->handles();
    return job_->library().Ireduce(in_out.data, static_cast<int>(in_out.count),
                                   handles.dtypes[static_cast<size_t>(in_out.dtype)],
                                   handles.ops[static_cast<size_t>(op)], root,
                                   lane.group.my_index == root, comm, request);
  });
}

Status MpiBackend::ReduceScatter(const LaneContext& lane, const TensorView& in,
                                 const TensorView& out, std::span<const int64_t> part_counts,
                                 ReduceOp op) {
  const auto bytes = static_cast<int64_t>(in.bytes());
  if (!ReducesInLibrary(lane.group, in.dtype, op, bytes)) {
    return OursFor(lane.group).ReduceScatter(lane, in, out, part_counts, op);
  }
  struct Memory {
    explicit Memory(std::span<const int64_t> counts, size_t bytes) : parts(counts), out(bytes) {}
    Parts parts;
    std::vector<std::byte> out;  // MPI forbids that the output lies inside the input
  };
  LeftBehind<Memory> memory(part_counts, out.bytes());
  RABIT_RETURN_IF_ERROR(
      memory.After(Run(lane, Kind::kReduceScatter, bytes, [&](MpiHandle comm, MpiHandle* request) {
        const MpiHandles& handles = job_->handles();
        return job_->library().IreduceScatter(in.data, (*memory).out.data(), (*memory).parts.counts,
                                              handles.dtypes[static_cast<size_t>(in.dtype)],
                                              handles.ops[static_cast<size_t>(op)], comm, request);
      })));
  if (out.bytes() > 0) std::memcpy(out.data, (*memory).out.data(), out.bytes());
  return Status();
}

Status MpiBackend::Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                             std::span<const int64_t> part_bytes) {
  const int64_t bytes = Total(part_bytes);
  // In Intel MPI 2021.18 an MPI_Iallgatherv of some 100 kB to which a rank brings nothing never
  // ends.
  const bool has_empty = std::find(part_bytes.begin(), part_bytes.end(), 0) != part_bytes.end();
  if (has_empty || !UsesLibrary(lane.group, bytes)) {
    return OursFor(lane.group).Allgather(lane, mine, all, part_bytes);
  }
  LeftBehind<Parts> parts(part_bytes);
  const auto my_offset = (*parts).offsets[static_cast<size_t>(lane.group.my_index)];
  const bool is_in_place = mine.data() == all.data() + my_offset;
  return parts.After(Run(lane, Kind::kAllgather, bytes, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Iallgatherv(is_in_place ? nullptr : OrNothing(mine.data()),
                                       static_cast<int>(mine.size()), all.data(), *parts, comm,
                                       request);
  }));
}

Status MpiBackend::Broadcast(const LaneContext& lane, Bytes buffer, int root) {
  const auto bytes = static_cast<int64_t>(buffer.size());
  if (!UsesLibrary(lane.group, bytes)) {
    return OursFor(lane.group).Broadcast(lane, buffer, root);
  }
  return Run(lane, Kind::kBroadcast, bytes, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Ibcast(buffer.data(), static_cast<int>(bytes), root, comm, request);
  });
}

// No rank knows how much the others exchange, so size cannot decide.
Status MpiBackend::Alltoall(const LaneContext& lane, ConstBytes in,
                            std::span<const int64_t> send_bytes, Bytes out,
                            std::span<const int64_t> receive_bytes) {
  if (options_.collectives != MpiCollectives::kLibrary || lane.group.size() == 1) {
    return OursFor(lane.group).Alltoall(lane, in, send_bytes, out, receive_bytes);
  }
  const int64_t bytes = std::max(Total(send_bytes), Total(receive_bytes));
  if (bytes > kCountMax) {
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
  return memory.After(Run(lane, Kind::kAlltoall, bytes, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Ialltoallv(in.data(), (*memory).sends, out.data(), (*memory).receives,
                                      comm, request);
  }));
}

Status MpiBackend::Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                          std::span<const int64_t> part_bytes, int root) {
  const int64_t bytes = Total(part_bytes);
  if (!UsesLibrary(lane.group, bytes)) {
    return OursFor(lane.group).Gather(lane, mine, all, part_bytes, root);
  }
  LeftBehind<Parts> parts(part_bytes);
  const bool is_root = lane.group.my_index == root;
  const bool is_in_place =
      is_root && mine.data() == all.data() + (*parts).offsets[static_cast<size_t>(root)];
  return parts.After(Run(lane, Kind::kGather, bytes, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Igatherv(is_in_place ? nullptr : OrNothing(mine.data()),
                                    static_cast<int>(mine.size()), all.data(), *parts, root, comm,
                                    request);
  }));
}

Status MpiBackend::Scatter(const LaneContext& lane, ConstBytes all,
                           std::span<const int64_t> part_bytes, Bytes mine, int root) {
  const int64_t bytes = Total(part_bytes);
  if (!UsesLibrary(lane.group, bytes)) {
    return OursFor(lane.group).Scatter(lane, all, part_bytes, mine, root);
  }
  LeftBehind<Parts> parts(part_bytes);
  const bool is_root = lane.group.my_index == root;
  const bool is_in_place =
      is_root && mine.data() == all.data() + (*parts).offsets[static_cast<size_t>(root)];
  return parts.After(Run(lane, Kind::kScatter, bytes, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Iscatterv(all.data(), *parts,
                                     is_in_place ? nullptr : OrNothing(mine.data()),
                                     static_cast<int>(mine.size()), root, comm, request);
  }));
}

Status MpiBackend::Barrier(const LaneContext& lane) {
  if (!UsesLibrary(lane.group, 0)) return OursFor(lane.group).Barrier(lane);
  return Run(lane, Kind::kBarrier, 0, [&](MpiHandle comm, MpiHandle* request) {
    return job_->library().Ibarrier(comm, request);
  });
}

Status MpiBackend::Send(const LaneContext& lane, ConstBytes buffer, int peer) {
  return OursFor(lane.group).Send(lane, buffer, peer);
}

Status MpiBackend::Recv(const LaneContext& lane, Bytes buffer, int peer) {
  return OursFor(lane.group).Recv(lane, buffer, peer);
}

void MpiBackend::WriteStatistics(JsonWriter& json) const {
  const MpiHandles& handles = job_->handles();
  const bool is_shared = host_links_.has_value();
  json.Member("rank", job_->options().rank).Member("library", Printable(handles.version));
  json.Member("transport", Printable(handles.transport));
  json.Member("thread_level", handles.is_serialized ? "serialized" : "multiple");
  json.Member("inside_host", is_shared ? "shm" : "mpi");
  json.Member("communicators", job_->communicators()).Key("calls").BeginObject();
  for (size_t kind = 0; kind < counters_.size(); ++kind) {
    const uint64_t calls = counters_[kind].calls.load();
    if (calls == 0) continue;
    json.Key(Name(static_cast<Kind>(kind))).BeginObject().Member("calls", calls);
    json.Member("bytes", counters_[kind].bytes.load()).EndObject();
  }
  json.EndObject().Key("messages").BeginObject();
  messages_->WriteStatistics(json);
  json.EndObject();
  if (!is_shared || host_links_->across == nullptr) return;
  json.Key("across").BeginObject();
  host_links_->across->WriteStatistics(json);
  json.EndObject();
}

}  // namespace rabit

#include "backend/builtin/builtin_backend.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <utility>

#include "collective/allgather.h"
#include "collective/alltoall.h"
#include "collective/barrier.h"
#include "collective/broadcast.h"
#include "collective/link_probe.h"
#include "collective/reduce_to.h"
#include "collective/rooted.h"
#include "transport/group_transport.h"

namespace rabit {
namespace {

constexpr size_t kLanesMax = 256;  // a tag has 8 bits for the stream
// Below this the extra steps of a hierarchy cost more than the slow links save.
constexpr int64_t kHierarchicalBytesMin = 64 << 10;
// From parts of this size on, senders that meet at one receiver overflow the queue of its link, and
// what TCP then repeats costs more than the steps of a ring, where every link has one sender.
constexpr int64_t kRingPartBytesMin = 16 << 10;
// Up to here a message to everybody is cheaper than more steps.
constexpr int64_t kRingAllgatherBytesMin = 1 << 20;
constexpr int64_t kChainBroadcastBytesMin = 128 << 10;

// Tags of the two measurements must differ: one may be over on a rank before it is on another.
constexpr uint64_t kStepsOfPhase = 1 << 16;

// What a group of one rank sees; nobody can be reached.
class LonelyTransport final : public Transport {
 public:
  std::string_view name() const override { return "none"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Operation Send(int peer, Tag, ConstBytes) override { return Operation(NoPeer(peer)); }
  Operation Recv(int peer, Tag, Bytes) override { return Operation(NoPeer(peer)); }
  void Abort(Status) override {}
  TransportCounters counters() const override { return {}; }

 private:
  static Status NoPeer(int peer) {
    return InvalidArgument("a group of one rank has no peer " + std::to_string(peer));
  }
};

// A ring rounds at every step.
bool RoundsToSixteenBits(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16;
}

size_t Total(std::span<const int64_t> parts) {
  return static_cast<size_t>(std::accumulate(parts.begin(), parts.end(), int64_t{0}));
}

std::vector<int> HostsOf(const Topology& topology, const Group& group) {
  std::vector<int> hosts;
  for (int rank : group.ranks) {
    const size_t index = static_cast<size_t>(rank);
    if (index < topology.host_of.size()) hosts.push_back(topology.host_of[index]);
  }
  return hosts;
}

// Its position among the ranks of its host.
int LocalIndex(const Topology& topology, int rank) {
  int index = 0;
  for (int before = 0; before < rank; ++before) index += topology.SameHost(before, rank);
  return index;
}

}  // namespace

Result<std::unique_ptr<BuiltinBackend>> BuiltinBackend::Create(std::unique_ptr<Transport> transport,
                                                               Topology topology,
                                                               BuiltinOptions options) {
  const size_t size = transport == nullptr ? 1 : static_cast<size_t>(transport->size());
  if (topology.host_of.size() != size) {
    return InvalidArgument("backend 'builtin': the topology has " +
                           std::to_string(topology.host_of.size()) + " ranks, the transport " +
                           std::to_string(size) + "; describe every rank once");
  }
  RABIT_ASSIGN_OR_RETURN(AlgorithmRules rules,
                         AlgorithmRules::Parse(options.algorithms, options.is_deterministic));
  return std::unique_ptr<BuiltinBackend>(new BuiltinBackend(
      std::move(transport), std::move(topology), std::move(options), std::move(rules)));
}

BuiltinBackend::BuiltinBackend(std::unique_ptr<Transport> transport, Topology topology,
                               BuiltinOptions options, AlgorithmRules rules)
    : transport_(std::move(transport)),
      topology_(std::move(topology)),
      options_(std::move(options)),
      rules_(std::move(rules)),
      link_(options_.link),
      scratch_(kLanesMax) {}

// ---- What the links cost ----------------------------------------------------------------------

Status BuiltinBackend::MeasureLinks(std::chrono::microseconds budget, Deadline deadline) {
  if (transport_ == nullptr) return Status();
  allreduce_choices_.Clear();
  const int me = transport_->rank();
  Group all, neighbours, counterparts;
  for (int rank = 0; rank < transport_->size(); ++rank) {
    all.ranks.push_back(rank);
    if (topology_.SameHost(rank, me)) neighbours.ranks.push_back(rank);
  }
  all.my_index = me;
  neighbours.my_index = neighbours.IndexOf(me);
  for (const int rank : all.ranks) {
    if (LocalIndex(topology_, rank) == neighbours.my_index) counterparts.ranks.push_back(rank);
  }
  counterparts.my_index = counterparts.IndexOf(me);

  Scratch scratch;
  uint64_t phase = 0;
  const auto measure = [&](const Group& group, LinkModel& link, int share) -> Status {
    GroupTransport members(*transport_, group);
    const uint64_t first_step = ++phase * kStepsOfPhase;
    const CollectiveCall mine{members, MakeTag(0, first_step), deadline, scratch};
    const CollectiveCall everybody{*transport_, MakeTag(0, first_step), deadline, scratch};
    RABIT_ASSIGN_OR_RETURN(link,
                           MeasureLink(everybody, mine, options_.link,
                                       {budget / share, topology_.CoresAt(me).ranks_per_core()}));
    return Status();
  };
  if (!IsHierarchical(all)) return measure(all, link_, 1);
  LinkModel local;
  RABIT_RETURN_IF_ERROR(measure(neighbours, local, 2));
  if (local.is_measured) local_link_ = local;
  return measure(counterparts, link_, 2);
}

// ---- Which algorithm -------------------------------------------------------------------------

Result<double> BuiltinBackend::CostMicros(const CollectiveSpec& spec, const Group& group) const {
  if (spec.device.kind != DeviceKind::kCpu) {
    return Unsupported("backend 'builtin' works on memory of the host only; copy the tensor there");
  }
  const int size = group.size();
  if (size <= 1) return 0.0;
  const int64_t bytes = spec.count * static_cast<int64_t>(SizeOf(spec.dtype));
  switch (spec.kind) {
    case Kind::kAllreduce:
      return ChooseAllreduce(group, spec.dtype, bytes).cost_us(link_, size, bytes);
    case Kind::kBroadcast:
      return BroadcastCostMicros(link_, size, bytes);
    case Kind::kReduce:
      return DirectCostMicros(link_, size, bytes);
    case Kind::kBarrier:
      return CeilLog2(size) * link_.latency_us;
    case Kind::kJoin:
      return 0.0;
    default:
      return ExchangeCostMicros(link_, size, bytes);
  }
}

const AllreduceAlgorithm& BuiltinBackend::ChooseAllreduce(const Group& group, DType dtype,
                                                          int64_t bytes) const {
  const std::span<const AllreduceAlgorithm> all = AllreduceAlgorithms();
  const int known = allreduce_choices_.Find(group.id, dtype, bytes);
  if (known != ChoiceMemory::kUnknown) return all[static_cast<size_t>(known)];
  const AllreduceAlgorithm& best = BestAllreduce(group, dtype, bytes);
  allreduce_choices_.Keep(group.id, dtype, bytes, static_cast<int>(&best - all.data()));
  return best;
}

const AllreduceAlgorithm& BuiltinBackend::BestAllreduce(const Group& group, DType dtype,
                                                        int64_t bytes) const {
  if (const std::string_view wanted = rules_.Find(Kind::kAllreduce, bytes); !wanted.empty()) {
    return *FindAllreduceAlgorithm(wanted);
  }
  const AllreduceAlgorithm& flat =
      ChooseAllreduceAlgorithm(link_, group.size(), bytes, dtype, options_.is_deterministic);
  if (options_.is_deterministic || RoundsToSixteenBits(dtype)) return flat;
  if (IsHierarchical(group) &&
      WantsHierarchy(group, bytes, flat.cost_us(link_, group.size(), bytes))) {
    return *FindAllreduceAlgorithm("hierarchical");
  }
  return WantsRing(group, bytes) ? *FindAllreduceAlgorithm("ring") : flat;
}

bool BuiltinBackend::WantsHierarchy(const Group& group, int64_t bytes, double flat_us) const {
  if (!local_link_.has_value()) return bytes >= kHierarchicalBytesMin;
  const std::vector<int> hosts = HostsOf(topology_, group);
  const int host_count = static_cast<int>(std::set<int>(hosts.begin(), hosts.end()).size());
  const int local_size = (group.size() + host_count - 1) / host_count;
  return HierarchicalCostMicros(*local_link_, link_, local_size, host_count, bytes) < flat_us;
}

std::string_view BuiltinBackend::ChooseAllgather(const Group& group, int64_t bytes) const {
  const std::string_view wanted = rules_.Find(Kind::kAllgather, bytes);
  if (!wanted.empty()) return wanted;
  if (WantsRing(group, bytes)) return "ring";
  return group.size() > 2 && bytes >= kRingAllgatherBytesMin ? "ring" : "direct";
}

std::string_view BuiltinBackend::ChooseBroadcast(const Group& group, int64_t bytes) const {
  const std::string_view wanted = rules_.Find(Kind::kBroadcast, bytes);
  if (!wanted.empty()) return wanted;
  return group.size() > 2 && bytes >= kChainBroadcastBytesMin ? "chain" : "binomial";
}

bool BuiltinBackend::IsHierarchical(const Group& group) const {
  std::vector<int> hosts = HostsOf(topology_, group);
  std::sort(hosts.begin(), hosts.end());
  const bool has_neighbours = std::adjacent_find(hosts.begin(), hosts.end()) != hosts.end();
  return has_neighbours && hosts.front() != hosts.back();
}

bool BuiltinBackend::WantsRing(const Group& group, int64_t bytes) const {
  if (group.size() <= 2 || bytes < kRingPartBytesMin * group.size()) return false;
  std::vector<int> hosts = HostsOf(topology_, group);
  std::sort(hosts.begin(), hosts.end());
  return std::adjacent_find(hosts.begin(), hosts.end()) == hosts.end();
}

std::string BuiltinBackend::AlgorithmFor(const CollectiveSpec& spec, const Group& group) const {
  const int64_t bytes = spec.count * static_cast<int64_t>(SizeOf(spec.dtype));
  if (group.size() <= 1) return "none";
  switch (spec.kind) {
    case Kind::kAllreduce:
      return std::string(ChooseAllreduce(group, spec.dtype, bytes).name);
    case Kind::kAllgather:
      return std::string(ChooseAllgather(group, bytes));
    case Kind::kBroadcast:
      return std::string(ChooseBroadcast(group, bytes));
    case Kind::kAlltoall:
      return "pairwise";
    case Kind::kBarrier:
      return "dissemination";
    default:
      return "direct";
  }
}

// ---- Running it ------------------------------------------------------------------------------

Status BuiltinBackend::FailureSoFar() const {
  if (!has_failed_.load(std::memory_order_acquire)) return Status();
  std::lock_guard lock(mutex_);
  return failure_;
}

Status BuiltinBackend::CheckPosition(const LaneContext& lane, Kind kind, const char* what,
                                     int position) const {
  if (position >= 0 && position < lane.group.size()) return Status();
  return InvalidArgument(std::string(Name(kind)) + ": " + what + " is " + std::to_string(position) +
                         ", but group " + std::to_string(lane.group.id) + " has positions 0 to " +
                         std::to_string(lane.group.size() - 1) + "; name one of them");
}

Status BuiltinBackend::Run(const LaneContext& lane, Kind kind, std::string_view algorithm,
                           size_t bytes, const std::function<Status(const CollectiveCall&)>& body) {
  RABIT_RETURN_IF_ERROR(FailureSoFar());
  if (!lane.group.is_member() || lane.lane < 0 || lane.lane >= static_cast<int>(kLanesMax)) {
    return InvalidArgument(std::string(Name(kind)) + " in group " + std::to_string(lane.group.id) +
                           " on lane " + std::to_string(lane.lane) +
                           ": this rank is no member, or the lane is not 0 to 255");
  }
  Scratch& scratch = scratch_[static_cast<size_t>(lane.lane)];
  const auto start = std::chrono::steady_clock::now();
  Status status;
  if (lane.group.size() == 1) {
    LonelyTransport lonely;
    status = body({lonely, lane.tag, lane.deadline, scratch});
  } else if (transport_ == nullptr) {
    return Internal("a group of " + std::to_string(lane.group.size()) +
                    " ranks in a job without a transport");
  } else {
    GroupTransport members(*transport_, lane.group);
    transport_->SetWaiter(lane.lane, lane.waiter);
    status = body({members, lane.tag, lane.deadline, scratch});
  }
  const auto busy = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  statistics_.Add(kind, algorithm, bytes, static_cast<uint64_t>(busy.count()));
  return status;
}

Status BuiltinBackend::Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) {
  const AllreduceAlgorithm& algorithm =
      ChooseAllreduce(lane.group, in_out.dtype, static_cast<int64_t>(in_out.bytes()));
  std::vector<int> hosts;
  if (algorithm.knows_hosts) hosts = HostsOf(topology_, lane.group);
  return Run(lane, Kind::kAllreduce, algorithm.name, in_out.bytes(),
             [&](const CollectiveCall& call) { return algorithm.run(call, {in_out, op, hosts}); });
}

Status BuiltinBackend::Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                              int root) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kReduce, "root", root));
  return Run(lane, Kind::kReduce, "direct", in_out.bytes(),
             [&](const CollectiveCall& call) { return ReduceToRoot(call, in_out, op, root); });
}

Status BuiltinBackend::Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                                 std::span<const int64_t> part_bytes) {
  const size_t bytes = Total(part_bytes);
  const std::string_view algorithm = ChooseAllgather(lane.group, static_cast<int64_t>(bytes));
  return Run(lane, Kind::kAllgather, algorithm, bytes, [&](const CollectiveCall& call) {
    return rabit::Allgather(
        call, mine, all, part_bytes,
        algorithm == "ring" ? AllgatherAlgorithm::kRing : AllgatherAlgorithm::kDirect);
  });
}

Status BuiltinBackend::ReduceScatter(const LaneContext& lane, const TensorView& in,
                                     const TensorView& out, std::span<const int64_t> part_counts,
                                     ReduceOp op) {
  const bool is_ring = WantsRing(lane.group, static_cast<int64_t>(in.bytes())) &&
                       !options_.is_deterministic && !RoundsToSixteenBits(in.dtype);
  const auto scatter = is_ring ? ReduceScatterAroundRing : rabit::ReduceScatter;
  return Run(lane, Kind::kReduceScatter, is_ring ? "ring" : "direct", in.bytes(),
             [&](const CollectiveCall& call) { return scatter(call, in, out, part_counts, op); });
}

Status BuiltinBackend::Broadcast(const LaneContext& lane, Bytes buffer, int root) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kBroadcast, "root", root));
  const std::string_view algorithm =
      ChooseBroadcast(lane.group, static_cast<int64_t>(buffer.size()));
  return Run(lane, Kind::kBroadcast, algorithm, buffer.size(), [&](const CollectiveCall& call) {
    return rabit::Broadcast(
        call, buffer, root,
        algorithm == "chain" ? BroadcastAlgorithm::kChain : BroadcastAlgorithm::kBinomial);
  });
}

Status BuiltinBackend::Alltoall(const LaneContext& lane, ConstBytes in,
                                std::span<const int64_t> send_bytes, Bytes out,
                                std::span<const int64_t> receive_bytes) {
  return Run(lane, Kind::kAlltoall, "pairwise", in.size(), [&](const CollectiveCall& call) {
    return rabit::Alltoall(call, in, send_bytes, out, receive_bytes);
  });
}

Status BuiltinBackend::Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                              std::span<const int64_t> part_bytes, int root) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kGather, "root", root));
  return Run(lane, Kind::kGather, "direct", Total(part_bytes), [&](const CollectiveCall& call) {
    return rabit::Gather(call, mine, all, part_bytes, root);
  });
}

Status BuiltinBackend::Scatter(const LaneContext& lane, ConstBytes all,
                               std::span<const int64_t> part_bytes, Bytes mine, int root) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kScatter, "root", root));
  return Run(lane, Kind::kScatter, "direct", Total(part_bytes), [&](const CollectiveCall& call) {
    return rabit::Scatter(call, all, part_bytes, mine, root);
  });
}

Status BuiltinBackend::Barrier(const LaneContext& lane) {
  return Run(lane, Kind::kBarrier, "dissemination", 0,
             [](const CollectiveCall& call) { return rabit::Barrier(call); });
}

Status BuiltinBackend::Send(const LaneContext& lane, ConstBytes buffer, int peer) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kSend, "peer", peer));
  return Run(lane, Kind::kSend, "direct", buffer.size(), [&](const CollectiveCall& call) {
    return call.transport.Send(peer, call.tag, buffer).Wait(call.deadline);
  });
}

Status BuiltinBackend::Recv(const LaneContext& lane, Bytes buffer, int peer) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kRecv, "peer", peer));
  return Run(lane, Kind::kRecv, "direct", buffer.size(), [&](const CollectiveCall& call) {
    return call.transport.Recv(peer, call.tag, buffer).Wait(call.deadline);
  });
}

void BuiltinBackend::Abort(Status why) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
    has_failed_.store(true, std::memory_order_release);
  }
  if (transport_ != nullptr) transport_->Abort(std::move(why));
}

void BuiltinBackend::WriteStatistics(JsonWriter& json) const {
  const TransportCounters counters =
      transport_ == nullptr ? TransportCounters{} : transport_->counters();
  json.Key("transport").BeginObject();
  json.Member("name", transport_ == nullptr ? "none" : transport_->name());
  json.Member("bytes_sent", counters.bytes_sent).Member("bytes_received", counters.bytes_received);
  json.Member("messages_sent", counters.messages_sent);
  json.Member("messages_received", counters.messages_received);
  json.Member("frames_corrupt", counters.frames_corrupt);
  json.Member("frames_resent", counters.frames_resent);
  json.Member("connections_restored", counters.connections_restored).EndObject();
  json.Key("link").BeginObject().Member("is_measured", link_.is_measured);
  json.Member("latency_us", link_.latency_us).Member("fan_us", link_.fan_us);
  json.Member("message_us", link_.message_us).Member("bytes_per_us", link_.bytes_per_us);
  json.Member("reduce_bytes_per_us", link_.reduce_bytes_per_us).EndObject();
  statistics_.Write(json.Key("algorithms"));
}

}  // namespace rabit

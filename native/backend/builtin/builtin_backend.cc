#include "backend/builtin/builtin_backend.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/tree_plan.h"
#include "collective/allgather.h"
#include "collective/allreduce.h"
#include "collective/alltoall.h"
#include "collective/barrier.h"
#include "collective/broadcast.h"
#include "collective/hosts.h"
#include "collective/link_probe.h"
#include "collective/planned.h"
#include "collective/reduce_to.h"
#include "collective/rooted.h"
#include "transport/group_transport.h"

namespace rabit {
namespace {

constexpr size_t kLanesMax = 256;  // a tag has 8 bits for the stream
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

bool IsPlanned(const LaneContext& lane) {
  return lane.algorithm == kPlanAlgorithm && lane.group.plan != nullptr && lane.group.size() > 1;
}

// The group with its ranks in the order of its plan: ranks keep their numbers, and change places on
// the ring alone.
Group OnRing(const Group& group) {
  Group ordered = group;
  if (group.plan->order().empty()) return ordered;
  for (size_t i = 0; i < ordered.ranks.size(); ++i) {
    const int position = group.plan->order()[i];
    ordered.ranks[i] = group.ranks[static_cast<size_t>(position)];
    if (position == group.my_index) ordered.my_index = static_cast<int>(i);
  }
  return ordered;
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
                                                               std::string name) {
  const size_t size = transport == nullptr ? 1 : static_cast<size_t>(transport->size());
  if (topology.host_of.size() != size) {
    return InvalidArgument("backend '" + name + "': the topology has " +
                           std::to_string(topology.host_of.size()) + " ranks, the transport " +
                           std::to_string(size) + "; describe every rank once");
  }
  return std::unique_ptr<BuiltinBackend>(
      new BuiltinBackend(std::move(transport), std::move(topology), std::move(name)));
}

BuiltinBackend::BuiltinBackend(std::unique_ptr<Transport> transport, Topology topology,
                               std::string name)
    : transport_(std::move(transport)),
      topology_(std::move(topology)),
      name_(std::move(name)),
      scratch_(kLanesMax) {}

// ---- What the links cost ----------------------------------------------------------------------

Status BuiltinBackend::MeasureLinks(std::chrono::microseconds budget, Deadline deadline) {
  if (transport_ == nullptr) return Status();
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
                           MeasureLink(everybody, mine, LinkModel(),
                                       {budget / share, topology_.CoresAt(me).ranks_per_core()}));
    return Status();
  };
  // Every rank takes the same branch, as the topology is the same: ranks that measured in different
  // groups would wait for each other.
  if (!HasHierarchy(topology_, all)) return measure(all, links_.slowest, 1);
  LinkModel local;
  RABIT_RETURN_IF_ERROR(measure(neighbours, local, 2));
  if (local.is_measured) links_.within_host = local;
  return measure(counterparts, links_.slowest, 2);
}

Status BuiltinBackend::MeasureFlows(int stream, std::span<Flow> flows, Deadline deadline) {
  if (transport_ == nullptr) return InvalidArgument("a job of one rank has no links to measure");
  RABIT_RETURN_IF_ERROR(FailureSoFar());
  Scratch scratch;
  // The same tags every time: messages with one tag arrive in their order.
  return rabit::MeasureFlows({*transport_, MakeTag(stream, 1), deadline, scratch}, flows);
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

Status BuiltinBackend::Run(const LaneContext& lane, Kind kind, size_t bytes,
                           const std::function<Status(const CollectiveCall&)>& body) {
  RABIT_RETURN_IF_ERROR(FailureSoFar());
  if (!lane.group.is_member() || lane.lane < 0 || lane.lane >= static_cast<int>(kLanesMax)) {
    return InvalidArgument(std::string(Name(kind)) + " in group " + std::to_string(lane.group.id) +
                           " on lane " + std::to_string(lane.lane) +
                           ": this rank is no member, or the lane is not 0 to 255");
  }
  // A lane makes one call at a time, so its scratch needs no lock; ordered calls have a lane of
  // their own.
  Scratch& scratch = scratch_[static_cast<size_t>(lane.lane)];
  if (lane.group.size() == 1) {
    LonelyTransport lonely;
    return body({lonely, lane.tag, lane.deadline, scratch});
  }
  if (transport_ == nullptr) {
    return Internal("a group of " + std::to_string(lane.group.size()) +
                    " ranks in a job without a transport");
  }
  GroupTransport members(*transport_, lane.group);
  // The stream of this lane has one user at a time, so what is said here holds for the waits of
  // this call.
  transport_->SetWaiter(lane.lane, lane.waiter, bytes);
  return body({members, lane.tag, lane.deadline, scratch});
}

Status BuiltinBackend::NoAlgorithm(const LaneContext& lane, Kind kind) const {
  return Internal("backend '" + name_ + "' has no " + std::string(Name(kind)) + " algorithm '" +
                  std::string(lane.algorithm) + "'; report this");
}

Operation BuiltinBackend::Allreduce(const LaneContext& lane, const TensorView& in_out,
                                    ReduceOp op) {
  if (IsPlanned(lane)) {
    return Run(lane, Kind::kAllreduce, in_out.bytes(), [&](const CollectiveCall& call) {
      return PlannedAllreduce(call, *lane.group.plan, in_out, op, lane.epilogue);
    });
  }
  const AllreduceAlgorithm* const algorithm =
      FindAllreduceAlgorithm(lane.group.size() == 1 ? "direct" : lane.algorithm);
  if (algorithm == nullptr) return NoAlgorithm(lane, Kind::kAllreduce);
  std::vector<int> hosts;
  if (algorithm->knows_hosts) hosts = HostsOf(topology_, lane.group);
  std::optional<Group> ordered;
  if (algorithm->name == "ring" && lane.group.plan != nullptr) ordered = OnRing(lane.group);
  const Group& group = ordered.has_value() ? *ordered : lane.group;
  // `ordered` stays alive on this stack until the blocking call below has returned.
  const LaneContext placed{lane.lane,      lane.tag,   lane.deadline, group, lane.waiter,
                           lane.algorithm, lane.place, lane.epilogue};
  return Run(placed, Kind::kAllreduce, in_out.bytes(), [&](const CollectiveCall& call) {
    return algorithm->run(call, {in_out, op, hosts, lane.epilogue});
  });
}

Operation BuiltinBackend::Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                                 int root) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kReduce, "root", root));
  return Run(lane, Kind::kReduce, in_out.bytes(), [&](const CollectiveCall& call) {
    if (IsPlanned(lane)) {
      return PlannedReduce(call, *lane.group.plan, in_out, op, root, lane.epilogue);
    }
    return ReduceToRoot(call, in_out, op, root, lane.epilogue);
  });
}

Operation BuiltinBackend::Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                                    std::span<const int64_t> part_bytes) {
  const bool is_ring = lane.algorithm == "ring";
  const bool is_planned = IsPlanned(lane);
  if (!is_ring && !is_planned && lane.algorithm != "direct" && lane.group.size() > 1) {
    return NoAlgorithm(lane, Kind::kAllgather);
  }
  return Run(lane, Kind::kAllgather, all.size(), [&](const CollectiveCall& call) {
    if (is_planned) return PlannedAllgather(call, *lane.group.plan, mine, all, part_bytes);
    return rabit::Allgather(call, mine, all, part_bytes,
                            is_ring ? AllgatherAlgorithm::kRing : AllgatherAlgorithm::kDirect);
  });
}

Operation BuiltinBackend::ReduceScatter(const LaneContext& lane, const TensorView& in,
                                        const TensorView& out, std::span<const int64_t> part_counts,
                                        ReduceOp op) {
  const bool is_ring = lane.algorithm == "ring";
  const bool is_planned = IsPlanned(lane);
  if (!is_ring && !is_planned && lane.algorithm != "direct" && lane.group.size() > 1) {
    return NoAlgorithm(lane, Kind::kReduceScatter);
  }
  const auto scatter = is_ring ? ReduceScatterAroundRing : rabit::ReduceScatter;
  return Run(lane, Kind::kReduceScatter, in.bytes(), [&](const CollectiveCall& call) {
    if (is_planned) {
      return PlannedReduceScatter(call, *lane.group.plan, in, out, part_counts, op, lane.epilogue);
    }
    return scatter(call, in, out, part_counts, op, lane.epilogue);
  });
}

Operation BuiltinBackend::Broadcast(const LaneContext& lane, Bytes buffer, int root) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kBroadcast, "root", root));
  const bool is_chain = lane.algorithm == "chain";
  const bool is_planned = IsPlanned(lane);
  if (!is_chain && !is_planned && lane.algorithm != "binomial" && lane.group.size() > 1) {
    return NoAlgorithm(lane, Kind::kBroadcast);
  }
  return Run(lane, Kind::kBroadcast, buffer.size(), [&](const CollectiveCall& call) {
    if (is_planned) return PlannedBroadcast(call, *lane.group.plan, buffer, root);
    return rabit::Broadcast(call, buffer, root,
                            is_chain ? BroadcastAlgorithm::kChain : BroadcastAlgorithm::kBinomial);
  });
}

Operation BuiltinBackend::Alltoall(const LaneContext& lane, ConstBytes in,
                                   std::span<const int64_t> send_bytes, Bytes out,
                                   std::span<const int64_t> receive_bytes) {
  return Run(lane, Kind::kAlltoall, std::max(in.size(), out.size()),
             [&](const CollectiveCall& call) {
               const bool has_links = CountHosts(topology_, lane.group) > 1;
               return rabit::Alltoall(call, in, send_bytes, out, receive_bytes,
                                      has_links ? PacingOver(links_.slowest) : AlltoallPacing());
             });
}

Operation BuiltinBackend::Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                                 std::span<const int64_t> part_bytes, int root) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kGather, "root", root));
  return Run(
      lane, Kind::kGather, std::max(mine.size(), all.size()),
      [&](const CollectiveCall& call) { return rabit::Gather(call, mine, all, part_bytes, root); });
}

Operation BuiltinBackend::Scatter(const LaneContext& lane, ConstBytes all,
                                  std::span<const int64_t> part_bytes, Bytes mine, int root) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kScatter, "root", root));
  return Run(lane, Kind::kScatter, std::max(mine.size(), all.size()),
             [&](const CollectiveCall& call) {
               return rabit::Scatter(call, all, part_bytes, mine, root);
             });
}

Operation BuiltinBackend::Barrier(const LaneContext& lane) {
  return Run(lane, Kind::kBarrier, 0,
             [](const CollectiveCall& call) { return rabit::Barrier(call); });
}

Operation BuiltinBackend::Send(const LaneContext& lane, ConstBytes buffer, int peer) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kSend, "peer", peer));
  return Run(lane, Kind::kSend, buffer.size(), [&](const CollectiveCall& call) {
    return call.transport.Send(peer, call.tag, buffer).Wait(call.deadline);
  });
}

Operation BuiltinBackend::Recv(const LaneContext& lane, Bytes buffer, int peer) {
  RABIT_RETURN_IF_ERROR(CheckPosition(lane, Kind::kRecv, "peer", peer));
  return Run(lane, Kind::kRecv, buffer.size(), [&](const CollectiveCall& call) {
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
  // Without the lock: Abort wakes lanes, whose next act is to ask for the failure.
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
  counters.WriteRepairs(json);
  json.EndObject();
  const LinkModel& link = links_.slowest;
  json.Key("link").BeginObject().Member("is_measured", link.is_measured);
  json.Member("latency_us", link.latency_us).Member("fan_us", link.fan_us);
  json.Member("message_us", link.message_us).Member("bytes_per_us", link.bytes_per_us);
  json.Member("reduce_bytes_per_us", link.reduce_bytes_per_us).EndObject();
}

}  // namespace rabit

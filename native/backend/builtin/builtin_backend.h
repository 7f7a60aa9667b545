// BuiltinBackend: runs our own collectives over a Transport.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/builtin/algorithm_rules.h"
#include "backend/builtin/call_statistics.h"
#include "backend/builtin/choice_memory.h"
#include "collective/allreduce.h"
#include "collective/scratch.h"
#include "transport/transport.h"

namespace rabit {

struct BuiltinOptions {
  LinkModel link;                 // unless it is measured
  std::string algorithms;         // see AlgorithmRules; empty: by cost
  bool is_deterministic = false;  // only algorithms that sum in rank order
};

// Thread-safe for different lanes; one lane runs one collective at a time.
class BuiltinBackend final : public Backend {
 public:
  // `transport` has one rank per entry of `topology`; nullptr for a job of one rank.
  static Result<std::unique_ptr<BuiltinBackend>> Create(std::unique_ptr<Transport> transport,
                                                        Topology topology, BuiltinOptions options);

  // Finds out what the links cost, in about `budget`; none: the defaults stay.  Collective, before
  // anything else; rank 0's budget counts.
  Status MeasureLinks(std::chrono::microseconds budget, Deadline deadline);

  // Whether the links were measured and ranks share cores; equal on all ranks.
  bool shares_cores() const { return link_.is_measured && link_.is_crowded; }

  std::string_view name() const override { return "builtin"; }
  Result<double> CostMicros(const CollectiveSpec& spec, const Group& group) const override;

  Status Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override;
  Status Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op, int root) override;
  Status Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                   std::span<const int64_t> part_bytes) override;
  Status ReduceScatter(const LaneContext& lane, const TensorView& in, const TensorView& out,
                       std::span<const int64_t> part_counts, ReduceOp op) override;
  Status Broadcast(const LaneContext& lane, Bytes buffer, int root) override;
  Status Alltoall(const LaneContext& lane, ConstBytes in, std::span<const int64_t> send_bytes,
                  Bytes out, std::span<const int64_t> receive_bytes) override;
  Status Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                std::span<const int64_t> part_bytes, int root) override;
  Status Scatter(const LaneContext& lane, ConstBytes all, std::span<const int64_t> part_bytes,
                 Bytes mine, int root) override;
  Status Barrier(const LaneContext& lane) override;
  Status Send(const LaneContext& lane, ConstBytes buffer, int peer) override;
  Status Recv(const LaneContext& lane, Bytes buffer, int peer) override;

  void Abort(Status why) override;
  std::string AlgorithmFor(const CollectiveSpec& spec, const Group& group) const override;
  void WriteStatistics(JsonWriter& json) const override;

 private:
  BuiltinBackend(std::unique_ptr<Transport> transport, Topology topology, BuiltinOptions options,
                 AlgorithmRules rules);

  const AllreduceAlgorithm& ChooseAllreduce(const Group& group, DType dtype, int64_t bytes) const;
  const AllreduceAlgorithm& BestAllreduce(const Group& group, DType dtype, int64_t bytes) const;
  std::string_view ChooseAllgather(const Group& group, int64_t bytes) const;
  std::string_view ChooseBroadcast(const Group& group, int64_t bytes) const;
  // Several hosts, and one of them with several ranks of the group.
  bool IsHierarchical(const Group& group) const;
  bool WantsHierarchy(const Group& group, int64_t bytes, double flat_us) const;
  // More than two hosts with one rank of the group each, and enough bytes.
  bool WantsRing(const Group& group, int64_t bytes) const;

  // Runs `body` for this lane and counts it.  A group of one rank needs no transport; `body` is
  // then called with one that has no peers.
  Status Run(const LaneContext& lane, Kind kind, std::string_view algorithm, size_t bytes,
             const std::function<Status(const CollectiveCall&)>& body);
  Status CheckPosition(const LaneContext& lane, Kind kind, const char* what, int position) const;
  Status FailureSoFar() const;

  const std::unique_ptr<Transport> transport_;
  const Topology topology_;
  const BuiltinOptions options_;
  const AlgorithmRules rules_;
  // Fixed before the first collective.
  LinkModel link_;  // of the slowest links there are
  std::optional<LinkModel>
      local_link_;  // measured; of ranks that share a host, where others do not
  mutable ChoiceMemory allreduce_choices_;  // indices into AllreduceAlgorithms()
  CallStatistics statistics_;
  std::vector<Scratch> scratch_;  // by lane; each touched by its lane only

  std::atomic<bool> has_failed_{false};
  mutable std::mutex mutex_;
  Status failure_;  // guarded by mutex_
};

}  // namespace rabit

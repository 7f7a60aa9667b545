// BuiltinBackend: runs our own collectives over a Transport.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "collective/call.h"
#include "collective/cost.h"
#include "collective/flow_rates.h"
#include "collective/scratch.h"
#include "transport/transport.h"

namespace rabit {

// Runs the algorithm that LaneContext names: see AlgorithmNames in route/algorithm_rules.h for the
// kinds that have several.  Thread-safe for different lanes; one lane runs one collective at a
// time.
class BuiltinBackend final : public Backend {
 public:
  // `transport` has one rank per entry of `topology`; nullptr for a job of one rank.
  static Result<std::unique_ptr<BuiltinBackend>> Create(std::unique_ptr<Transport> transport,
                                                        Topology topology,
                                                        std::string name = "builtin");

  // Finds out what the links cost, in about `budget`; none: the defaults stay.  Collective, before
  // anything else; rank 0's budget counts.
  Status MeasureLinks(std::chrono::microseconds budget, Deadline deadline);
  const LinkCosts& links() const { return links_; }
  // See collective/flow_rates.h; nothing else may use the stream meanwhile.
  Status MeasureFlows(int stream, std::span<Flow> flows, Deadline deadline);

  // Whether the links were measured and ranks share cores; equal on all ranks.
  bool shares_cores() const { return links_.slowest.is_measured && links_.slowest.is_crowded; }

  std::string_view name() const override { return name_; }
  bool applies_epilogues() const override { return true; }

  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override;
  Operation Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                   int root) override;
  Operation Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                      std::span<const int64_t> part_bytes) override;
  Operation ReduceScatter(const LaneContext& lane, const TensorView& in, const TensorView& out,
                          std::span<const int64_t> part_counts, ReduceOp op) override;
  Operation Broadcast(const LaneContext& lane, Bytes buffer, int root) override;
  Operation Alltoall(const LaneContext& lane, ConstBytes in, std::span<const int64_t> send_bytes,
                     Bytes out, std::span<const int64_t> receive_bytes) override;
  Operation Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                   std::span<const int64_t> part_bytes, int root) override;
  Operation Scatter(const LaneContext& lane, ConstBytes all, std::span<const int64_t> part_bytes,
                    Bytes mine, int root) override;
  Operation Barrier(const LaneContext& lane) override;
  Operation Send(const LaneContext& lane, ConstBytes buffer, int peer) override;
  Operation Recv(const LaneContext& lane, Bytes buffer, int peer) override;

  void Abort(Status why) override;
  void WriteStatistics(JsonWriter& json) const override;

 private:
  BuiltinBackend(std::unique_ptr<Transport> transport, Topology topology, std::string name);

  // Runs `body`, which exchanges a buffer of `bytes`, for this lane.  A group of one rank needs no
  // transport; `body` is then called with one that has no peers.
  Status Run(const LaneContext& lane, Kind kind, size_t bytes,
             const std::function<Status(const CollectiveCall&)>& body);
  Status NoAlgorithm(const LaneContext& lane, Kind kind) const;
  Status CheckPosition(const LaneContext& lane, Kind kind, const char* what, int position) const;
  Status FailureSoFar() const;

  const std::unique_ptr<Transport> transport_;
  const Topology topology_;
  const std::string name_;
  LinkCosts links_;               // fixed before the first collective
  std::vector<Scratch> scratch_;  // by lane; each touched by its lane only

  std::atomic<bool> has_failed_{false};
  mutable std::mutex mutex_;
  Status failure_;  // guarded by mutex_
};

}  // namespace rabit

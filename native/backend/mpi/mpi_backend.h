// MpiBackend: runs collectives with the functions of this process's MPI library.
#pragma once

#include <functional>
#include <memory>

#include "backend/backend.h"
#include "backend/mpi/mpi_job.h"

namespace rabit {

// Whether ranks of this group meet in MPI; the others need no communicators.
using MeetsInMpi = std::function<bool(const Group&)>;

// What the library does not do is the business of other backends: see route/router.h.  Thread-safe
// for different lanes; one lane runs one collective at a time.
class MpiBackend final : public Backend {
 public:
  // Both equal on all ranks.  `shares_hosts`: ranks of one host do without MPI.
  MpiBackend(std::shared_ptr<MpiJob> job, bool shares_hosts, MeetsInMpi meets_in_mpi);

  std::string_view name() const override { return "mpi"; }
  Status AddGroup(const Group& group) override;

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

  void Abort(Status why) override;
  void WriteStatistics(JsonWriter& json) const override;

 private:
  // Starts `start(communicator, &request)` and waits for it.
  template <class Start>
  Status Run(const LaneContext& lane, Kind kind, Start start);

  const std::shared_ptr<MpiJob> job_;
  const bool shares_hosts_;
  const MeetsInMpi meets_in_mpi_;
};

}  // namespace rabit

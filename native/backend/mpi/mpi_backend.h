// MpiBackend: runs collectives with the MPI library of this process.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/mpi/mpi_job.h"

namespace rabit {

enum class MpiCollectives {
  kAuto,      // the library's where they are fast, messages where our algorithms are faster
  kLibrary,   // the library's wherever they do what we promise
  kMessages,  // never the library's
};

struct MpiOptions {
  MpiCollectives collectives = MpiCollectives::kAuto;
  bool is_default = false;        // of operations that name no backend
  bool is_deterministic = false;  // sums in rank order
};

// How ranks of one host reach each other without MPI.
struct HostLinks {
  Topology topology;
  Backend& local;  // for groups on one host; outlives the MPI backend
  std::unique_ptr<Backend>
      across;  // over shared memory and MPI messages; null in a job on one host
};

// `messages` runs the builtin algorithms over MakeMpiTransport(job): what the library does not do.
// Which of the two runs follows from what all ranks know, so all choose alike.  Thread-safe for
// different lanes; one lane runs one collective at a time.
class MpiBackend final : public Backend {
 public:
  // `host_links`, equal on all ranks but for what they point to: none, and MPI moves everything.
  MpiBackend(std::shared_ptr<MpiJob> job, std::unique_ptr<Backend> messages, MpiOptions options,
             std::optional<HostLinks> host_links);

  std::string_view name() const override { return "mpi"; }
  Result<double> CostMicros(const CollectiveSpec& spec, const Group& group) const override;
  Status AddGroup(const Group& group) override;

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
  // The ranks of the group share a host and do without MPI.
  bool StaysOnHost(const Group& group) const;
  // Who runs what the library does not.
  Backend& OursFor(const Group& group) const;
  Backend& OursForAllreduce(const CollectiveSpec& spec, const Group& group) const;
  bool UsesLibrary(const Group& group, int64_t bytes) const;
  bool ReducesInLibrary(const Group& group, DType dtype, ReduceOp op, int64_t bytes) const;
  // Starts `start(communicator, &request)` and waits for it.
  template <class Start>
  Status Run(const LaneContext& lane, Kind kind, int64_t bytes, Start start);

  struct Counter {
    std::atomic<uint64_t> calls{0}, bytes{0};
  };

  const std::shared_ptr<MpiJob> job_;
  const std::unique_ptr<Backend> messages_;
  const MpiOptions options_;
  const std::optional<HostLinks> host_links_;
  std::array<Counter, 12> counters_;  // by Kind: what the library ran
};

}  // namespace rabit

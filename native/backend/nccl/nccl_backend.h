// NcclBackend: collectives between GPUs, by NVIDIA's NCCL.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "backend/nccl/nccl_communicator.h"
#include "backend/nccl/nccl_library.h"
#include "base/mutex.h"
#include "rendezvous/store.h"

namespace rabit {

struct NcclOptions {
  int rank = 0;              // global, for messages
  std::string key;           // what is the ranks' own in the store
  int64_t open_ms = 60'000;  // that a communicator may take until all its ranks have come
};

// Puts collectives on the stream that the context names, and what it does not have of NCCL's own
// functions, out of these: messages, and one broadcast or reduction for each part.  Which types and
// operations it has is the business of route/nccl_rows.h.
//
// A group's communicator is made at its first collective, because no rank knows its device before.
// All calls come from one thread, in one order on all ranks: NCCL demands that of all communicators
// of a device.  Abort and Failure: any thread.
class NcclBackend final : public Backend {
 public:
  // `store`, where ranks meet, outlives it; null if there is one rank.
  NcclBackend(std::shared_ptr<const NcclLibrary> library, Store* store, NcclOptions options);

  ~NcclBackend() override;

  std::string_view name() const override { return "nccl"; }
  bool works_on_devices() const override { return true; }
  Status AddGroup(const Group& group) override;
  // Its communicators end on a thread of their own, one group after another: that waits for what
  // the other ranks still have to do with them.
  void RemoveGroup(const Group& group) override;

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
  Operation Send(const LaneContext& lane, ConstBytes buffer, int peer) override;
  Operation Recv(const LaneContext& lane, Bytes buffer, int peer) override;

  Status Failure(const Group& group) override;
  void Abort(Status why) override;
  void WriteStatistics(JsonWriter& json) const override;

 private:
  using Ranks = std::vector<int>;
  // Of all ranks of a group, and of two that send each other messages; made when they first do.
  using ByRanks = std::map<Ranks, std::shared_ptr<NcclCommunicator>>;
  // What is called with the communicator and the stream, in a group of NCCL's.
  using Calls = std::function<nccl::Result(nccl::Comm, nccl::Stream)>;
  // The same of a message, with the other's place in the pair.
  using PairCalls = std::function<nccl::Result(nccl::Comm, nccl::Stream, int)>;
  // The same of a reduction, with its operation.
  using Reduction = std::function<nccl::Result(nccl::Comm, nccl::Stream, nccl::RedOp)>;

  Status Run(const char* what, const LaneContext& lane, const Calls& calls);
  // With the communicator of this rank and of `peer` alone: the others do not know of it.
  Status RunBetween(const char* what, const LaneContext& lane, int peer, const PairCalls& calls);
  Status RunReduction(const char* what, const LaneContext& lane, DType dtype, ReduceOp op,
                      const Reduction& calls);
  Result<std::shared_ptr<NcclCommunicator>> CommunicatorOf(const LaneContext& lane);
  Status Open(NcclCommunicator& communicator, const Group& group, Deadline deadline);
  Result<nccl::UniqueId> IdentityOf(const Group& group, const std::string& key, Deadline deadline);
  Result<nccl::UniqueId> Publish(const std::string& key);
  NcclCommunicator::Several Communicators() const;
  void CloseRemoved();
  Status failure() const;
  // Of a failed call: what has made it fail, if that is known.
  Status Explained(const Status& status) const;

  const std::shared_ptr<const NcclLibrary> library_;
  Store* const store_;
  const NcclOptions options_;
  mutable Mutex mutex_;
  std::map<GroupId, ByRanks> groups_ RABIT_GUARDED_BY(mutex_);
  // Of groups that were removed, the first of which is being closed.
  std::deque<NcclCommunicator::Several> removed_ RABIT_GUARDED_BY(mutex_);
  bool closes_ RABIT_GUARDED_BY(mutex_) = false;
  std::thread closer_;  // while closes_, and until it is joined; engine thread, and destructor
  Status failure_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

// Backend: executes collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/encoded_sum.h"
#include "base/epilogue.h"
#include "base/group.h"
#include "base/json_writer.h"
#include "base/operation.h"
#include "base/result.h"
#include "base/spin_budget.h"
#include "base/status.h"

namespace rabit {

class DeviceDriver;
class PinnedPool;

// Backend::Abort returns within this time, whatever it has to end.
inline constexpr std::chrono::milliseconds kAbortWithin{2000};

// Where a collective on the memory of a device is put.
struct DevicePlace {
  std::shared_ptr<DeviceDriver> driver;
  int32_t device = 0;
  void* stream = nullptr;  // what is put there before comes first, what is put afterwards later
  double factor = 1.0;     // by which a sum, or an average, is multiplied
  std::shared_ptr<PinnedPool> pinned = {};  // of backends that need the host's memory as well
};

// Where and until when one collective runs.
struct LaneContext {
  int32_t lane = 0;
  Tag tag = 0;  // MakeTag(lane, bucket id); the low kTagStepBits are the collective's own
  Deadline deadline;
  const Group& group;
  Waiter waiter = Waiter::kBackground;  // whose thread this is
  std::string_view algorithm = {};      // that the route names; of backends that have several
  const DevicePlace* place = nullptr;   // of backends that work on devices, and of no others
  Epilogue epilogue = {};               // of a reduction, by backends that finish it
};

// Methods are called one at a time per lane, in one order on all ranks.  What they return is over
// if the backend blocks; else it is waited for later, after further calls, by the thread that made
// it, and until then the arguments but for the context and the parts are used.  `group` in the
// context names the members; ranks in arguments (root, peer) and the order of parts are positions
// inside the group.  All sizes are bytes or elements of `dtype`; parts of vector forms are given as
// bytes per group member.  kAverage arrives as kSum: the engine finishes what the backend does not.
//
// A backend that works on devices gets memory of the device that the context names, and kAverage as
// it is.  For it a collective is over when it is on the stream; Failure tells what becomes of it.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual bool works_on_devices() const { return false; }
  // Whether its reductions do what is left once a sum is complete (LaneContext::epilogue), before
  // it is rounded to the type.  If not, it is given no sum that the type may be too narrow for
  // (EndsWide).
  virtual bool applies_epilogues() const { return false; }
  // Whether Abort ends it and nothing else: no other backend uses its connections, and afterwards
  // it touches no memory of a tensor.  If not, its failure is that of the engine.
  virtual bool fails_apart() const { return false; }
  // Called on every rank in the same order, before the first collective of the group.  May wait for
  // the other ranks, and is never called on the engine thread.
  virtual Status AddGroup(const Group& group);
  // No collective of the group comes any more, and those that came are over here, or on the stream
  // of a device.  Returns at once: the engine thread calls it.
  virtual void RemoveGroup(const Group&) {}

  virtual Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op);
  // Like Allreduce, but only `root` has the result; `in_out` elsewhere is scratch.
  virtual Operation Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                           int root);
  // `all` is the parts in group order; part i has part_bytes[i]; `mine` may lie inside `all`.
  virtual Operation Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                              std::span<const int64_t> part_bytes);
  // `in` has the parts in group order, part i of part_counts[i] elements; `out` gets part
  // my_index, reduced, which may be that part of `in`.  All else of `in` stays as it is.
  virtual Operation ReduceScatter(const LaneContext& lane, const TensorView& in,
                                  const TensorView& out, std::span<const int64_t> part_counts,
                                  ReduceOp op);
  virtual Operation Broadcast(const LaneContext& lane, Bytes buffer, int root);
  virtual Operation Alltoall(const LaneContext& lane, ConstBytes in,
                             std::span<const int64_t> send_bytes, Bytes out,
                             std::span<const int64_t> receive_bytes);
  virtual Operation Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                           std::span<const int64_t> part_bytes, int root);
  virtual Operation Scatter(const LaneContext& lane, ConstBytes all,
                            std::span<const int64_t> part_bytes, Bytes mine, int root);
  virtual Operation Barrier(const LaneContext& lane);
  virtual Operation Send(const LaneContext& lane, ConstBytes buffer, int peer);
  virtual Operation Recv(const LaneContext& lane, Bytes buffer, int peer);

  // Of backends that add encodings up on their way, for codecs (Exchange::DivideEncoded).  Places
  // are the backend's own; empty: it does not, on any rank.
  virtual std::vector<EncodedSlice> DivideEncoded(const LaneContext& lane, int64_t bytes,
                                                  int64_t largest);
  virtual Operation SumEncoded(const LaneContext& lane, Bytes in_out,
                               std::span<const EncodedSlice> slices);

  // What has gone wrong with collectives of the group that are on a stream; OK if nothing has.
  virtual Status Failure(const Group&) { return Status(); }

  // Fails every present and future call with `why`, within kAbortWithin.  Any thread; the first
  // reason is kept.
  virtual void Abort(Status why) = 0;

  // Members of an object.
  virtual void WriteStatistics(JsonWriter&) const {}
};

}  // namespace rabit

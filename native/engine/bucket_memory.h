// BucketMemory: where the tensors of a bucket lie while they are exchanged, and how they come there
// and back.
#pragma once

#include <cstddef>
#include <memory>

#include "backend/backend.h"
#include "base/bytes.h"
#include "base/device/device.h"
#include "base/result.h"
#include "engine/bucket_job.h"
#include "engine/lane_services.h"
#include "engine/tensor_chunks.h"

namespace rabit {

// Which bytes ranks exchange, and how many at a time, follows from what is agreed, never from the
// memory: a rank that has joined has no tensor, so its memory is another one.
//
// A bucket calls Prepare, Begin, then whatever its kind needs, Launch, and Wait until it is over.
// An object is used again for later buckets, and keeps what it has allocated.  The lane's thread,
// or whoever has claimed the lane.
class BucketMemory {
 public:
  virtual ~BucketMemory() = default;

  // Has a device begin to copy what `job` reads, before the buckets before it are done.  `job` and
  // `services` outlive the bucket; the stages up to Launch, together, block until `deadline` at
  // most.
  virtual Status Prepare(const LaneServices& services, const BucketJob& job, Deadline deadline) = 0;
  // Blocks until the exchanges of the bucket can begin.
  virtual Status Begin() { return Status(); }
  // All exchanges were made, or have failed as `exchanged` says: the results set out for the
  // outputs.  Returns `exchanged`, or what has failed here.
  virtual Status Launch(const Status& exchanged) { return exchanged; }
  // Blocks until the results have arrived; kTimedOut: they are still under way.
  virtual Status Wait(Deadline) { return Status(); }
  // They will not arrive because of `why`: ends what is under way.
  virtual void GiveUp(const Status& why) { (void)why; }

  // Whether results set out after the exchanges, and a lane may have the next bucket prepared
  // while this one is exchanged.
  virtual bool has_images() const { return false; }
  // Where backends put exchanges; null: they work in the memory of the host.  After Begin.
  virtual const DevicePlace* place() const { return nullptr; }
  // Stands for the result of an item with a request, from Launch until Wait has returned; null: no
  // event does.
  virtual const DeviceEvent* ResultOf(const BucketItem&) const { return nullptr; }

  // Where exchanges find slice `part` of what an item with a request reads, and of what it writes;
  // of kinds without even parts there is slice 0 (tensor_chunks.h).  The output is prepared.
  virtual Bytes Slice(const BucketItem& item, Side side, int64_t part) const = 0;
  std::byte* Input(const BucketItem& item) const { return Slice(item, Side::kInput, 0).data(); }
  std::byte* Output(const BucketItem& item) const { return Slice(item, Side::kOutput, 0).data(); }
  // Whether exchanges may write to the output; if not, they write to scratch, and HandOver follows.
  virtual bool CanReachOutput(const BucketItem&) const { return true; }
  // Whether the slices of several partitions of a tensor lie as those of the whole tensor do.
  virtual bool joins_partitions() const { return true; }
  // For a reduce-scatter: whether the item's output may be written while other slices of its input
  // are read.  May copy the input aside to make it so.
  virtual Result<bool> KeepInput(const BucketItem& item) = 0;

  // Memory for exchanges, uninitialised and valid until the next call with the same slot
  // (fusion_buffer.h), or, on a device, until the end of the bucket.
  virtual Result<Bytes> Scratch(size_t slot, size_t bytes) = 0;
  // Copies `count` elements at `from`, times `factor`; a rank without a request contributes what
  // changes nothing.
  virtual Status Bring(const BucketItem& item, const std::byte* from, std::byte* to, int64_t count,
                       double factor) = 0;
  // Copies a result to `to`, in the output of an item with a request.
  virtual Status HandOver(const BucketItem& item, std::byte* to, ConstBytes from) = 0;
};

}  // namespace rabit

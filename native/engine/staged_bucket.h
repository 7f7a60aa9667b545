// StagedBucket: the host's images of a bucket's tensors that lie in the memory of a device.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/device/device.h"
#include "base/device/device_arena.h"
#include "engine/bucket_job.h"
#include "engine/devices.h"

namespace rabit {

// A partition travels in three steps, each of which runs beside those of other buckets: the device
// copies it into pinned memory, the ranks exchange it there, the device copies the result back.
// Its memory is kept from bucket to bucket.  The lane's thread, or whoever has claimed the lane.
class StagedBucket {
 public:
  // Whether a tensor of this rank is on a device.
  static bool IsNeeded(const BucketJob& job);

  StagedBucket() = default;
  StagedBucket(const StagedBucket&) = delete;
  // Waits for copies that are under way, because their memory goes.
  ~StagedBucket();

  // Has the device copy what `job` reads.  Waits until `deadline` for copies of the bucket before,
  // if there are any left.
  Status CopyIn(Devices& devices, const BucketJob& job, int rank, Deadline deadline);
  // Has it copy the results of `job` to outputs on a device.
  Status CopyOut(const BucketJob& job, int rank);
  // Stands for the result of the item, after CopyOut and until Wait has returned; null: it is
  // there, or not on a device.
  const DeviceEvent* ResultOf(const BucketItem& item) const;
  // Waits for what was told last; kTimedOut: it goes on.  A copy that has failed is told each time.
  Status Wait(Deadline deadline);

  // The chunks that the item reads, and those that it writes, one behind the other.
  std::byte* InputOf(const BucketItem& item, const BucketJob& job) const;
  std::byte* OutputOf(const BucketItem& item, const BucketJob& job) const;

 private:
  struct Image {
    size_t input = 0;   // where it begins in the memory
    size_t output = 0;  // the same place if the result replaces the input
  };
  // What a device that holds tensors of the bucket was told.
  struct Told {
    const Devices::Streams* streams;
    DeviceEvent event;
    bool is_awaited = false;
  };

  size_t Place(const BucketJob& job);
  Status CopyInput(const BucketItem& item, const BucketJob& job);
  Status CopyOutput(const BucketItem& item, const BucketJob& job);
  Status Reserve(int device, size_t bytes);
  Result<Told*> ToldOf(int device);
  Status RecordAll(DeviceStream Devices::Streams::* stream);
  // What is put on `stream` from here on comes after the kernels that compute the tensor, which
  // the others did not wait for if it is early.
  Status AwaitReady(const PendingRequest& pending, const DeviceStream& stream);
  std::byte* At(size_t offset) const { return memory_ + offset; }

  Devices* devices_ = nullptr;
  std::shared_ptr<DeviceDriver> driver_;
  DeviceArena<PinnedMemory> arena_;
  std::byte* memory_ = nullptr;  // of the images
  std::vector<Image> images_;    // by item
  std::vector<std::unique_ptr<Told>> told_;
  Status failed_;  // the first copy of this bucket that did
};

}  // namespace rabit

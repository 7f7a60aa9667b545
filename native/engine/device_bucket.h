// DeviceBucket: a bucket that is exchanged in the memory of a device.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "base/device/pinned_pool.h"
#include "base/device/stream_tail.h"
#include "engine/bucket_memory.h"

namespace rabit {

// Memory of a device that buckets use one behind the other, in the order of their stream: each
// takes it from the beginning, whether those before have come to their end or not.
class DeviceScratch {
 public:
  // For the next bucket.  The largest region is given out again.  Smaller ones, together as much at
  // most, stay unused until the end: giving memory back waits for all that the device has to do,
  // which may be a kernel that ends only when the thread that waits here has told it to.
  void Reset(const std::shared_ptr<DeviceDriver>& driver, int device);
  // What was taken before stays where it is.
  Result<Bytes> Take(size_t bytes);

 private:
  struct Region {
    DeviceMemory memory;
    size_t bytes = 0;
  };
  std::shared_ptr<DeviceDriver> driver_;
  int device_ = 0;
  std::map<int, std::vector<Region>> regions_;  // by device
  size_t used_ = 0;                             // of the last region of this device
};

// Packing, exchanging and unpacking are put on one stream of the device, one behind the other, and
// what is taken here is used in that order.  Nothing waits but Wait, and HandOver if a result for
// the host finds no room in pinned memory: it then goes through a piece.
class DeviceBucket final : public BucketMemory {
 public:
  // Buckets of one `scratch` share the stream.
  explicit DeviceBucket(DeviceScratch& scratch) : scratch_(scratch) {}

  Status Prepare(const LaneServices& services, const BucketJob& job, Deadline deadline) override;
  // Waits for what is left of the bucket before.
  Status Begin() override;
  // If exchanges have failed, also ends what of them is on the stream.
  Status Launch(const Status& exchanged) override;
  // The same if there is another error than kTimedOut.
  Status Wait(Deadline until) override;
  void GiveUp(const Status& why) override;

  const DevicePlace* place() const override { return &place_; }
  const DeviceEvent* ResultOf(const BucketItem& item) const override {
    return CanReachOutput(item) ? &tail_.event() : nullptr;
  }

  Bytes Slice(const BucketItem& item, Side side, int64_t part) const override {
    return InTensor(item, *job_, side, part);
  }
  bool CanReachOutput(const BucketItem& item) const override;
  Result<bool> KeepInput(const BucketItem& item) override;
  Result<Bytes> Scratch(size_t, size_t bytes) override { return scratch_.Take(bytes); }
  // Scales are the business of the backend (DevicePlace::factor).
  Status Bring(const BucketItem& item, const std::byte* from, std::byte* to, int64_t count,
               double factor) override;
  // What goes to the host is there when Wait has returned.
  Status HandOver(const BucketItem& item, std::byte* to, ConstBytes from) override;

 private:
  struct Arrival {
    std::byte* to;
    const std::byte* from;
    size_t bytes;
  };

  // What was not waited for before comes first on the stream.
  Status AwaitInputs();
  Status Copy(std::byte* to, ConstBytes from);
  Status CopyInPieces(std::byte* to, ConstBytes from);

  DeviceScratch& scratch_;
  const LaneServices* services_ = nullptr;
  const BucketJob* job_ = nullptr;
  Deadline deadline_;
  Backend* backend_ = nullptr;
  DevicePlace place_;
  Status failed_;                    // what Wait has seen, once it has ended the rest
  PinnedBlock identity_;             // of this bucket, for what this rank has no request of
  std::vector<PinnedBlock> pinned_;  // of its arrivals
  std::vector<Arrival> arrivals_;
  StreamTail tail_;
};

}  // namespace rabit

// DeviceBucket: a bucket that is exchanged in the memory of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/device/device.h"
#include "base/device/device_arena.h"
#include "engine/bucket_job.h"
#include "engine/devices.h"

namespace rabit {

// Memory of a device that buckets use one behind the other, in the order of their stream: each
// takes it from the beginning, whether those before have come to their end or not.
class DeviceScratch {
 public:
  // For the next bucket.
  void Reset(const std::shared_ptr<DeviceDriver>& driver, int device);
  Result<Bytes> Take(size_t bytes);

 private:
  std::shared_ptr<DeviceDriver> driver_;
  int device_ = 0;
  std::map<int, DeviceArena<DeviceMemory>> arenas_;  // by device
};

// Packing, exchanging and unpacking are put on one stream of the device, one behind the other, and
// nothing waits but Wait: what is taken here is used in that order.  The lane's thread, or whoever
// has claimed the lane.
class DeviceBucket {
 public:
  // Buckets of one `scratch` share the stream.
  explicit DeviceBucket(DeviceScratch& scratch) : scratch_(scratch) {}
  DeviceBucket(const DeviceBucket&) = delete;
  // Waits for what is under way, because its memory goes.
  ~DeviceBucket();

  // Waits until `deadline` for what is left of the bucket before.
  Status Begin(Devices& devices, const BucketJob& job, Deadline deadline);
  DevicePlace& place() { return place_; }

  // Memory of the device that nobody else uses meanwhile.
  Result<Bytes> Scratch(size_t bytes) { return scratch_.Take(bytes); }
  Status Copy(std::byte* to, const std::byte* from, size_t bytes);
  // It is there when Wait has returned.
  Status CopyToHost(std::byte* to, const std::byte* from, size_t bytes);
  // What changes nothing.
  Status FillIdentity(ReduceOp op, DType dtype, std::byte* to, int64_t count);

  // Behind the last of these.
  Status Record();
  // Stands for all of them, once recorded.
  const DeviceEvent& event() const { return event_; }
  // Whether Wait would not time out; waits for that until `until`.
  bool IsOver(Backend& backend, const Group& group, Deadline until);
  // Waits for all of them; kTimedOut: they go on.  After another error nothing is under way.
  Status Wait(Backend& backend, const Group& group, Deadline deadline);
  // They do not go on: ends them.
  void GiveUp(Backend& backend, const Status& why);

 private:
  struct Arrival {
    std::byte* to;
    const std::byte* from;
    size_t bytes;
  };

  Result<std::byte*> Pinned(size_t bytes);
  // What was not waited for before comes first on the stream.
  Status AwaitInputs(const BucketJob& job);

  DeviceScratch& scratch_;
  DevicePlace place_;
  DeviceEvent event_;
  bool is_under_way_ = false;
  Status failed_;  // what IsOver has seen, for Wait
  DeviceArena<PinnedMemory> pinned_;
  std::vector<Arrival> arrivals_;
};

}  // namespace rabit

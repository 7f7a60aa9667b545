// BucketMemories: one of each kind of memory, of which a bucket uses one.
#pragma once

#include <algorithm>

#include "engine/device_bucket.h"
#include "engine/fusion_buffer.h"
#include "engine/host_bucket.h"
#include "engine/staged_bucket.h"

namespace rabit {

// Kept from bucket to bucket.  The lane's thread, or whoever has claimed the lane.
class BucketMemories {
 public:
  explicit BucketMemories(DeviceScratch& scratch) : on_device_(scratch) {}

  // The choice is this rank's own: one that has joined has nothing to stage.
  BucketMemory& For(const LaneServices& services, const BucketJob& job) {
    if (job.bucket.device_kind == DeviceKind::kCpu || !job.route.ok()) return host_;
    if (services.BackendOf(job.route->executor).works_on_devices()) return on_device_;
    const bool has_tensors = std::any_of(job.items.begin(), job.items.end(), [](const auto& item) {
      return item.request() != nullptr;
    });
    return has_tensors ? static_cast<BucketMemory&>(staged_) : host_;
  }

 private:
  FusionBuffer buffer_;
  HostBucket host_{buffer_};
  StagedBucket staged_{host_};
  DeviceBucket on_device_;
};

}  // namespace rabit

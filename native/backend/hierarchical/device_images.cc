#include "backend/hierarchical/device_images.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace rabit {
namespace {

// Longer than any copy takes; the memory may not go before a copy has ended.
constexpr auto kLastWait = std::chrono::seconds(10);

}  // namespace

DeviceImages::~DeviceImages() { (void)AwaitLast(After(kLastWait)); }

Status DeviceImages::AwaitLast(Deadline deadline) {
  if (!is_under_way_) return Status();
  const Status status = WaitOver(*driver_, device_, last_.get(), deadline);
  is_under_way_ = status.code() == Code::kTimedOut;
  return status;
}

Status DeviceImages::Reserve(size_t bytes, size_t pieces, Deadline deadline) {
  if (!last_) {
    RABIT_ASSIGN_OR_RETURN(last_, MakeEvent(driver_, device_));
  }
  while (arrivals_.size() < pieces) {
    RABIT_ASSIGN_OR_RETURN(DeviceEvent event, MakeEvent(driver_, device_));
    arrivals_.push_back(std::move(event));
  }
  if (bytes <= bytes_) return Status();
  RABIT_RETURN_IF_ERROR(AwaitLast(deadline));
  // Half as much again: pinning memory is slow, and slowly growing buckets would do it each time.
  const size_t target = std::max(bytes, bytes_ + bytes_ / 2);
  memory_ = PinnedMemory();
  bytes_ = 0;
  RABIT_ASSIGN_OR_RETURN(memory_, MakePinned(driver_, device_, target));
  bytes_ = target;
  return Status();
}

Status DeviceImages::Leave(void* stream) {
  const Status status = driver_->Record(device_, last_.get(), stream);
  is_under_way_ = is_under_way_ || status.ok();
  return status;
}

}  // namespace rabit

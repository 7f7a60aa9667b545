#include "backend/hierarchical/device_images.h"

#include <chrono>
#include <utility>

namespace rabit {
namespace {

// Longer than any copy takes; the memory may not go before a copy has ended.
constexpr auto kLastWait = std::chrono::seconds(10);

}  // namespace

DeviceImages::~DeviceImages() {
  if (is_under_way_) (void)WaitOver(*driver_, device_, last_.get(), After(kLastWait));
}

Status DeviceImages::Reserve(size_t bytes, size_t pieces) {
  if (!last_) {
    RABIT_ASSIGN_OR_RETURN(last_, MakeEvent(driver_, device_));
  }
  while (arrivals_.size() < pieces) {
    RABIT_ASSIGN_OR_RETURN(DeviceEvent event, MakeEvent(driver_, device_));
    arrivals_.push_back(std::move(event));
  }
  if (bytes == 0) return Status();
  arena_.Reuse();
  RABIT_ASSIGN_OR_RETURN(memory_, arena_.Take(bytes, [this](size_t target) {
    return MakePinned(driver_, device_, target);
  }));
  return Status();
}

Status DeviceImages::Leave(void* stream) {
  const Status status = driver_->Record(device_, last_.get(), stream);
  is_under_way_ = is_under_way_ || status.ok();
  return status;
}

}  // namespace rabit

#include "base/device/stream_tail.h"

namespace rabit {

Status StreamTail::Record(const std::shared_ptr<DeviceDriver>& driver, int device, void* stream) {
  if (!event_ || event_.device() != device) {
    RABIT_ASSIGN_OR_RETURN(event_, MakeEvent(driver, device));
  }
  const Status status = driver->Record(device, event_.get(), stream);
  is_under_way_ = is_under_way_ || status.ok();
  return status;
}

Status StreamTail::Wait(Deadline deadline) {
  if (!is_under_way_) return Status();
  const Status status = WaitOver(event_.driver(), event_.device(), event_.get(), deadline);
  // A device that has failed touches no memory any more.
  is_under_way_ = status.code() == Code::kTimedOut;
  return status;
}

}  // namespace rabit

#include "engine/devices.h"

#include <utility>

namespace rabit {

Result<std::shared_ptr<DeviceDriver>> Devices::driver() {
  MutexLock lock(mutex_);
  // The driver is opened with the first tensor of a device, since a process that uses the CPU alone
  // must not load CUDA.  An error is remembered as well.
  if (!driver_) {
    driver_ = open_ ? open_()
                    : Result<std::shared_ptr<DeviceDriver>>(
                          Unsupported("this engine was started without a driver of devices"));
  }
  return *driver_;
}

Result<std::shared_ptr<const DeviceEvent>> Devices::Mark(int device, void* stream) {
  RABIT_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceDriver> found, driver());
  RABIT_RETURN_IF_ERROR(found->CheckRuns(device, stream));
  RABIT_ASSIGN_OR_RETURN(DeviceEvent event, MakeEvent(found, device));
  RABIT_RETURN_IF_ERROR(found->Record(device, event.get(), stream));
  last_used_.store(device);
  return std::shared_ptr<const DeviceEvent>(std::make_shared<DeviceEvent>(std::move(event)));
}

Result<int> Devices::last_used() {
  const int device = last_used_.load();
  if (device >= 0) return device;
  RABIT_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceDriver> found, driver());
  return local_rank_ % found->devices();
}

Result<const Devices::Streams*> Devices::StreamsOf(int device) {
  RABIT_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceDriver> found, driver());
  MutexLock lock(mutex_);
  // Entries are never erased and a map does not move them, so the pointer stays valid without the
  // lock.
  const auto known = streams_.find(device);
  if (known != streams_.end()) return &known->second;
  Streams streams;
  RABIT_ASSIGN_OR_RETURN(streams.to_host, MakeStream(found, device));
  RABIT_ASSIGN_OR_RETURN(streams.to_device, MakeStream(found, device));
  RABIT_ASSIGN_OR_RETURN(streams.exchange, MakeStream(found, device));
  return &streams_.emplace(device, std::move(streams)).first->second;
}

}  // namespace rabit

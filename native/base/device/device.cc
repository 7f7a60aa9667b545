#include "base/device/device.h"

#include <chrono>
#include <string>

#include "base/device/ask_until.h"

namespace rabit {

Result<DeviceStream> MakeStream(const std::shared_ptr<DeviceDriver>& driver, int device) {
  RABIT_ASSIGN_OR_RETURN(void* const stream, driver->CreateStream(device));
  return DeviceStream(driver, device, stream);
}

Result<DeviceEvent> MakeEvent(const std::shared_ptr<DeviceDriver>& driver, int device) {
  RABIT_ASSIGN_OR_RETURN(void* const event, driver->CreateEvent(device));
  return DeviceEvent(driver, device, event);
}

Result<PinnedMemory> MakePinned(const std::shared_ptr<DeviceDriver>& driver, int device,
                                size_t bytes) {
  RABIT_ASSIGN_OR_RETURN(void* const memory, driver->AllocatePinned(device, bytes));
  return PinnedMemory(driver, device, memory);
}

Result<DeviceMemory> MakeMemory(const std::shared_ptr<DeviceDriver>& driver, int device,
                                size_t bytes) {
  RABIT_ASSIGN_OR_RETURN(void* const memory, driver->Allocate(device, bytes));
  return DeviceMemory(driver, device, memory);
}

Status WaitOver(DeviceDriver& driver, int device, void* event, Deadline deadline) {
  const Deadline began = std::chrono::steady_clock::now();
  RABIT_ASSIGN_OR_RETURN(const bool is_over,
                         AskUntil(deadline, [&] { return driver.IsOver(device, event); }));
  return is_over ? Status() : NotOver(driver, device, began);
}

Status NotOver(const DeviceDriver& driver, int device, Deadline began) {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - began);
  return TimedOut(std::string(driver.name()) + " device " + std::to_string(device) +
                  " has not finished its work after " + std::to_string(waited.count()) +
                  " ms: something that was launched before does not end; look at the programs on "
                  "the device");
}

}  // namespace rabit

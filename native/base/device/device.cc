#include "base/device/device.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace rabit {
namespace {

// Copies of small tensors take some microseconds, those of a partition some hundreds.
constexpr auto kYieldFor = std::chrono::microseconds(20);
constexpr auto kSleepMax = std::chrono::microseconds(100);

}  // namespace

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
  std::chrono::microseconds sleep{5};
  for (;;) {
    RABIT_ASSIGN_OR_RETURN(const bool is_over, driver.IsOver(device, event));
    if (is_over) return Status();
    const Deadline now = std::chrono::steady_clock::now();
    if (now >= deadline) {
      const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - began);
      return TimedOut(std::string(driver.name()) + " device " + std::to_string(device) +
                      " has not finished its work after " + std::to_string(waited.count()) +
                      " ms: something that was launched before does not end; look at the programs "
                      "on the device");
    }
    if (now - began < kYieldFor) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(sleep * 2, kSleepMax);
    }
  }
}

}  // namespace rabit

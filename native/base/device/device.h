// DeviceDriver: streams, events, copies and pinned memory of one kind of device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/json_writer.h"
#include "base/result.h"
#include "base/status.h"

namespace rabit {

// `device` is an index below devices().  Streams and events are the driver's own handles, so that
// those of other libraries in the process can be passed; a null stream is the default one.  Nothing
// but IsOver and the destructors may be called where a copy is waited for: everything else returns
// when the device has been told.  Thread-safe.
class DeviceDriver {
 public:
  virtual ~DeviceDriver() = default;

  virtual std::string_view name() const = 0;  // "cuda"
  virtual int devices() const = 0;
  // Members of an object: what was loaded, and from where.
  virtual void Write(JsonWriter& json) const = 0;

  // A stream that does not wait for the default one.
  virtual Result<void*> CreateStream(int device) = 0;
  virtual void DestroyStream(int device, void* stream) = 0;
  virtual Result<void*> CreateEvent(int device) = 0;
  virtual void DestroyEvent(int device, void* event) = 0;
  // Memory of the host that the device copies from and to on its own.
  virtual Result<void*> AllocatePinned(int device, size_t bytes) = 0;
  virtual void FreePinned(int device, void* memory) = 0;

  // Memory of the device.
  virtual Result<void*> Allocate(int device, size_t bytes) = 0;
  // Waits for what the device was told before.
  virtual void Free(int device, void* memory) = 0;

  // Makes `call`, of another library that works on the current device of the thread.
  virtual Status Run(int device, const std::function<Status()>& call) = 0;

  // kUnsupported if what is put on `stream` is recorded to be replayed (a graph), not done.
  virtual Status CheckRuns(int device, void* stream) = 0;
  // `event` stands for everything that is on `stream` at this moment.
  virtual Status Record(int device, void* event, void* stream) = 0;
  // What is put on `stream` from here on is done after what `event` stands for.
  virtual Status Await(int device, void* stream, void* event) = 0;
  // Whether all that `event` stands for is done; the status of a device that has failed.
  virtual Result<bool> IsOver(int device, void* event) = 0;
  // Between pinned memory and that of the device.
  virtual Status CopyToHost(int device, void* stream, void* to, const void* from, size_t bytes) = 0;
  virtual Status CopyToDevice(int device, void* stream, void* to, const void* from,
                              size_t bytes) = 0;
  // Between two places in the memory of the device.
  virtual Status CopyWithin(int device, void* stream, void* to, const void* from, size_t bytes) = 0;
};

// Owns what a driver has created; move-only, empty when it was made without arguments.
template <void (DeviceDriver::*Destroy)(int device, void* handle)>
class DeviceOwned {
 public:
  DeviceOwned() = default;
  DeviceOwned(std::shared_ptr<DeviceDriver> driver, int device, void* handle)
      : driver_(std::move(driver)), device_(device), handle_(handle) {}
  DeviceOwned(DeviceOwned&& other) noexcept
      : driver_(std::move(other.driver_)),
        device_(other.device_),
        handle_(std::exchange(other.handle_, nullptr)) {}
  DeviceOwned& operator=(DeviceOwned&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~DeviceOwned() {
    if (handle_ != nullptr) ((*driver_).*Destroy)(device_, handle_);
  }

  void* get() const { return handle_; }
  int device() const { return device_; }
  DeviceDriver& driver() const { return *driver_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  std::shared_ptr<DeviceDriver> driver_;
  int device_ = 0;
  void* handle_ = nullptr;
};

using DeviceStream = DeviceOwned<&DeviceDriver::DestroyStream>;
using DeviceEvent = DeviceOwned<&DeviceDriver::DestroyEvent>;
using DeviceMemory = DeviceOwned<&DeviceDriver::Free>;
using PinnedMemory = DeviceOwned<&DeviceDriver::FreePinned>;

Result<DeviceStream> MakeStream(const std::shared_ptr<DeviceDriver>& driver, int device);
Result<DeviceEvent> MakeEvent(const std::shared_ptr<DeviceDriver>& driver, int device);
Result<PinnedMemory> MakePinned(const std::shared_ptr<DeviceDriver>& driver, int device,
                                size_t bytes);
Result<DeviceMemory> MakeMemory(const std::shared_ptr<DeviceDriver>& driver, int device,
                                size_t bytes);

// Blocks until `event` is over; kTimedOut at the deadline.  The driver's own wait has none.
Status WaitOver(DeviceDriver& driver, int device, void* event, Deadline deadline);
// What it says at the deadline of a wait that began then.
Status NotOver(const DeviceDriver& driver, int device, Deadline began);

}  // namespace rabit

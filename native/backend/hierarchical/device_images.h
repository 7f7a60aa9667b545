// DeviceImages: pinned memory of the host that one device copies to and from, piece by piece.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/device/device.h"
#include "base/device/device_arena.h"

namespace rabit {

// Whoever copies does so on one stream of the device: what comes later may use the memory again.
// One thread at a time.
class DeviceImages {
 public:
  DeviceImages(std::shared_ptr<DeviceDriver> driver, int device)
      : driver_(std::move(driver)), device_(device) {}
  DeviceImages(const DeviceImages&) = delete;
  // Waits for copies that are under way, because their memory goes.
  ~DeviceImages();

  // At least so many bytes, and so many pieces.
  Status Reserve(size_t bytes, size_t pieces);
  std::byte* memory() const { return memory_; }
  // Stands for the arrival of a piece, once it is recorded.
  void* arrival(size_t piece) const { return arrivals_[piece].get(); }

  // Behind the last copy on `stream`.
  Status Leave(void* stream);

 private:
  const std::shared_ptr<DeviceDriver> driver_;
  const int device_;
  DeviceArena<PinnedMemory> arena_;
  std::byte* memory_ = nullptr;
  std::vector<DeviceEvent> arrivals_;
  DeviceEvent last_;
  bool is_under_way_ = false;
};

}  // namespace rabit

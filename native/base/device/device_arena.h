// DeviceArena: memory of a device, or of the host pinned for one, that grows and is kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/device/device.h"

namespace rabit {

// Its pieces are given back all at once.  One thread at a time.
template <class Memory>
class DeviceArena {
 public:
  // `make(bytes)` allocates.  Pieces that were taken before stay where they are.
  template <class Make>
  Result<std::byte*> Take(size_t bytes, Make make) {
    constexpr size_t kAlignment = 256;
    bytes = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    if (regions_.empty() || regions_.back().bytes - used_ < bytes) {
      const size_t last = regions_.empty() ? 0 : regions_.back().bytes;
      const size_t target = std::max(bytes, 2 * last);
      RABIT_ASSIGN_OR_RETURN(Memory memory, make(target));
      regions_.push_back({std::move(memory), target});
      used_ = 0;
    }
    auto* const begin = static_cast<std::byte*>(regions_.back().memory.get()) + used_;
    used_ += bytes;
    return begin;
  }
  // Gives the largest region out again.  Smaller ones, together as much at most, stay unused until
  // the end: giving memory back waits for all that the device has to do, which may be a kernel that
  // ends only when the thread that waits here has told it to.
  void Reuse() { used_ = 0; }

 private:
  struct Region {
    Memory memory;
    size_t bytes = 0;
  };
  std::vector<Region> regions_;
  size_t used_ = 0;  // of the last
};

}  // namespace rabit

// Scratch: memory that a collective needs for what it receives and has yet to reduce.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <string>

#include "base/result.h"

namespace rabit {

// Grows to the largest request and is then reused, so that a steady state allocates nothing.  One
// thread at a time: its lane.
class Scratch {
 public:
  // Uninitialised, on a cache line, valid until the next Get.
  Result<std::byte*> Get(size_t bytes) {
    if (bytes <= bytes_) return memory_.get();
    memory_.reset();
    bytes_ = 0;
    memory_.reset(static_cast<std::byte*>(::operator new[](bytes, kAlignment, std::nothrow)));
    if (memory_ == nullptr) {
      return ResourceExhausted("a collective needs " + std::to_string(bytes) +
                               " bytes of scratch memory and the system has none; use smaller "
                               "partitions or fewer lanes");
    }
    bytes_ = bytes;
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }
  };
  std::unique_ptr<std::byte[], Delete> memory_;
  size_t bytes_ = 0;
};

}  // namespace rabit

// AlignedMemory: bytes on a cache-line boundary, owned.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace rabit {

inline constexpr std::align_val_t kBufferAlignment{64};

struct AlignedDelete {
  void operator()(std::byte* data) const { ::operator delete[](data, kBufferAlignment); }
};
using AlignedMemory = std::unique_ptr<std::byte[], AlignedDelete>;

// nullptr when there is no memory.
inline AlignedMemory AllocateAligned(size_t bytes) {
  void* data = ::operator new[](bytes == 0 ? 1 : bytes, kBufferAlignment, std::nothrow);
  return AlignedMemory(static_cast<std::byte*>(data));
}

}  // namespace rabit

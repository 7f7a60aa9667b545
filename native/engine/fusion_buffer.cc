#include "engine/fusion_buffer.h"

#include <algorithm>
#include <string>

namespace rabit {

Result<Bytes> FusionBuffer::Get(size_t slot, size_t bytes) {
  Region& region = regions_[slot];
  if (region.memory == nullptr || region.bytes < bytes) {
    // Half as much again, so that slowly growing buckets do not allocate each time.
    const size_t target = std::max(bytes, region.bytes + region.bytes / 2);
    // The old memory goes first: both together may be more than the machine has.
    region.memory.reset();
    region.bytes = 0;
    region.memory = AllocateAligned(target);
    if (region.memory == nullptr) {
      return ResourceExhausted("no memory for a fusion buffer of " + std::to_string(target) +
                               " bytes: the machine is out of memory; lower fusion_bytes");
    }
    region.bytes = target;
  }
  return Bytes(region.memory.get(), bytes);
}

}  // namespace rabit

// FusionBuffer: the memory in which one lane packs, encodes and decodes.
#pragma once

#include <array>
#include <cstddef>

#include "base/bytes.h"
#include "base/result.h"
#include "codec/exchange.h"
#include "engine/aligned_memory.h"

namespace rabit {

// Grows to the largest bucket and is then reused.  One thread: its lane.
class FusionBuffer {
 public:
  // `bytes` of uninitialised memory, valid until the next Get of the same slot.
  Result<Bytes> Get(size_t slot, size_t bytes);

  // Slots: what is packed for the wire; intermediate values; images of tensors on a device; then
  // those of a codec.
  static constexpr size_t kPacked = 0;
  static constexpr size_t kScratch = 1;
  static constexpr size_t kImages = 2;
  static constexpr size_t kOfCodec = 3;

 private:
  struct Region {
    AlignedMemory memory;
    size_t bytes = 0;
  };

  std::array<Region, kOfCodec + kScratchSlots> regions_;
};

}  // namespace rabit

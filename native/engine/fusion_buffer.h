// FusionBuffer: the memory in which one lane packs, encodes and decodes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "base/bytes.h"
#include "base/result.h"
#include "engine/aligned_memory.h"

namespace rabit {

// Grows to the largest bucket and is then reused.  One thread: its lane.
class FusionBuffer {
 public:
  explicit FusionBuffer(int32_t lane) : lane_(lane) {}

  // `bytes` of uninitialised memory, valid until the next Get.  `backend` may supply memory that it
  // moves faster.
  Result<Bytes> Get(Backend& backend, size_t bytes);
  // The same for intermediate values that never travel.
  Result<Bytes> GetScratch(size_t bytes);

 private:
  struct Region {
    AlignedMemory memory;
    size_t bytes = 0;
  };
  static Result<Bytes> Grow(Region& region, size_t bytes);

  const int32_t lane_;
  Region packed_;
  Region scratch_;
};

}  // namespace rabit

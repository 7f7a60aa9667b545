// CodecBlock: what a codec of blocks encodes at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/codec.h"

namespace rabit {

// Stands for the rank in the keys of what is encoded for all of them.  Who does that depends on
// what else is in the bucket and on the backend, so it must not count.
inline constexpr uint64_t kForAllRanks = ~uint64_t{0};

struct CodecBlock {
  const CodecPart* part;
  int64_t first;  // element of the part
  int64_t count;
  uint64_t index;  // in the tensor
};

std::vector<CodecBlock> BlocksOf(std::span<const CodecPart> parts, int64_t block);

}  // namespace rabit

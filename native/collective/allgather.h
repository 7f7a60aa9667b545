// Allgather of parts of any sizes.
#pragma once

#include <span>

#include "base/status.h"
#include "collective/call.h"

namespace rabit {

enum class AllgatherAlgorithm {
  kDirect,  // everybody sends to everybody: one step, the same bytes
  kRing,    // n - 1 steps between neighbours, chunk by chunk
};

// `all` is the parts in rank order; part i has part_bytes[i].  `mine` may be its part of `all`.
// Blocks.  Uses tag +0.
Status Allgather(const CollectiveCall& call, ConstBytes mine, Bytes all,
                 std::span<const int64_t> part_bytes, AllgatherAlgorithm algorithm);

}  // namespace rabit

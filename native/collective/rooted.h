// Gather to and scatter from one rank, with parts of any sizes.
#pragma once

#include <span>

#include "base/status.h"
#include "collective/call.h"

namespace rabit {

// `all` (of the root; ignored elsewhere) gets the parts in rank order, part i of part_bytes[i].
// `mine` may be the root's part of `all`.  Blocks.  Uses tag +0.
Status Gather(const CollectiveCall& call, ConstBytes mine, Bytes all,
              std::span<const int64_t> part_bytes, int root);

// `all` (of the root; ignored elsewhere) has the parts in rank order; `mine` gets this rank's.
// `mine` may be the root's part of `all`.  Blocks.  Uses tag +0.
Status Scatter(const CollectiveCall& call, ConstBytes all, std::span<const int64_t> part_bytes,
               Bytes mine, int root);

}  // namespace rabit

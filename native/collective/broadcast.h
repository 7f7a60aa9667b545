// Broadcast from one rank to all.
#pragma once

#include "base/status.h"
#include "collective/call.h"

namespace rabit {

enum class BroadcastAlgorithm {
  kBinomial,  // ceil(log2 n) steps; for small buffers
  kChain,     // from neighbour to neighbour, chunk by chunk; each link carries the buffer once
};

// Blocks.  Uses tag +0.
Status Broadcast(const CollectiveCall& call, Bytes buffer, int root, BroadcastAlgorithm algorithm);

}  // namespace rabit

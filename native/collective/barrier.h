// Barrier: returns when every rank has called it.
#pragma once

#include "base/status.h"
#include "collective/call.h"

namespace rabit {

// Dissemination: in step i to the rank 2^i after (Hensgen, Finkel and Manber, "Two algorithms for
// barrier synchronization", 1988).  Blocks.  Uses tags +0 … +ceil(log2 n).
Status Barrier(const CollectiveCall& call);

}  // namespace rabit

// Alltoall with parts of any sizes.
#pragma once

#include <span>

#include "base/status.h"
#include "collective/call.h"

namespace rabit {

// `in` is what goes to rank 0, 1, …; `out` gets what comes from rank 0, 1, …, in this order.
// Pairwise: in step s to the rank s after and from the rank s before.  Blocks.  Uses tag +0.
Status Alltoall(const CollectiveCall& call, ConstBytes in, std::span<const int64_t> send_bytes,
                Bytes out, std::span<const int64_t> receive_bytes);

}  // namespace rabit

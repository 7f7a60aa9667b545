// Alltoall with parts of any sizes.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "collective/call.h"
#include "collective/cost.h"

namespace rabit {

// How parts are cut, and how many pieces are on their way each way.  Equal on all ranks.
struct AlltoallPacing {
  int64_t piece_bytes = 0;  // 0: parts go whole
  int64_t in_flight = 8;    // more whole parts would only crowd the links
};
// Over links as slow as `link`.
AlltoallPacing PacingOver(const LinkModel& link);

// `in` is what goes to rank 0, 1, …; `out` gets what comes from rank 0, 1, …, in this order.
// Pairwise: in step s to the rank s after and from the rank s before; the second pieces follow when
// all first ones are on their way.  Blocks.  Uses tag +0.
Status Alltoall(const CollectiveCall& call, ConstBytes in, std::span<const int64_t> send_bytes,
                Bytes out, std::span<const int64_t> receive_bytes,
                const AlltoallPacing& pacing = {});

}  // namespace rabit

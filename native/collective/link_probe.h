// MeasureLink: the parameters of the cost model, from collectives on the ranks that will run them.
#pragma once

#include <chrono>

#include "base/result.h"
#include "collective/call.h"
#include "collective/cost.h"

namespace rabit {

struct LinkProbe {
  std::chrono::microseconds budget{0};  // none: nothing is measured
  double ranks_per_core = 1;            // more than 1: they share the cores of their host
};

// Fits `start` to how long a few allreduces of some sizes take, medians, for about the budget.
// Collective over `world`, blocks.  `group` is the part of the world whose links are measured while
// the other parts measure theirs: this rank's view of it, with the same scratch and deadline; the
// one of world's rank 0 decides, and its result is returned on every rank.  Rank 0's budget counts,
// so that ranks whose options differ do not wait for each other.
Result<LinkModel> MeasureLink(const CollectiveCall& world, const CollectiveCall& group,
                              const LinkModel& start, const LinkProbe& probe);

}  // namespace rabit

// MeasureFlows: what links carry while several transfers share them, found by sending.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "collective/call.h"

namespace rabit {

struct Flow {
  int round = 0;  // all flows of a round are under way at the same time
  int from = 0;
  int to = 0;
  double bytes_per_second = 0;  // found
  int64_t bytes = 0;            // sent in order to find it
};

// Collective over `call`, blocks; every rank passes the same flows, by ascending round.  A round
// takes about three times `round_seconds`.  A busy machine makes a link seem slower and never
// faster, so the better of two tries counts.  What is found has the same bits on all ranks.
Status MeasureFlows(const CollectiveCall& call, std::span<Flow> flows, double round_seconds = 0.08);

}  // namespace rabit

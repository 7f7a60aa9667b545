// MeasuredLinks: what the links of the hosts carry, found by sending over them.
#pragma once

#include <vector>

#include "backend/ps/link_shares.h"
#include "base/bytes.h"
#include "base/result.h"
#include "transport/transport.h"

namespace rabit {

// One host after another sends to all others, so that a link that is faster than all others shows, and hosts
// that share a switch do not share it now.  Every process of `places` calls it, whose number is its rank in
// `endpoints`, before anything else is sent.  Returns by host how many bytes per second its link carries, as
// powers of the fourth root of 2 times the slowest one.  Equal on all processes; 1 where there is one host.
Result<std::vector<double>> MeasureLinks(Transport& endpoints, const Places& places,
                                         Deadline deadline, double round_seconds = 0.08);

// Each rate in factors of the fourth root of 2 above the least: noise hardly changes how far above it is.
std::vector<double> InSteps(std::vector<double> rates);

}  // namespace rabit

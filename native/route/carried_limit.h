// CarriedLimit: up to which size a collective costs less with its data in the negotiation, as
// reckoned of an allreduce.
#pragma once

#include <cstdint>

#include "collective/cost.h"

namespace rabit {

// Carried whatever the links cost: what a message takes by itself is more.  Of many ranks, rank 0
// receives and sends no more of it in all than of 16.
constexpr int64_t CarriedAnyway(int size) { return size <= 16 ? 1 << 10 : (16 << 10) / size; }

// In bytes, at most `bytes_max`.  Rank 0 receives the inputs of `size` >= 2 ranks and sends each of
// them the result, in messages that would go anyway; `link` is what the slowest links cost.
int64_t CarriedLimit(const LinkModel& link, int size, int64_t bytes_max);

}  // namespace rabit

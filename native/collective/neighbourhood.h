// Neighbourhood: whom a rank meets where ranks of a host reduce first, and hosts afterwards.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/group.h"
#include "collective/chunks.h"

namespace rabit {

// Ranks are positions in the group that the hosts were told of.
struct Neighbourhood {
  Group local;     // ranks of this host
  Group across;    // ranks with this position on every host; empty if some host is smaller
  int shares = 0;  // ranks of the smallest host: so many parts are reduced across

  // One of `whole` for each rank of the host, one behind the other; those beyond the smallest
  // host's size own nothing.
  std::vector<Range> PartsOf(Range whole) const;
};

// `host_of` by rank; the numbers of the hosts may be any.
Neighbourhood FindNeighbourhood(std::span<const int> host_of, int rank);

}  // namespace rabit

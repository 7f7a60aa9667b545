#include "collective/neighbourhood.h"

#include <algorithm>
#include <map>

namespace rabit {

Neighbourhood FindNeighbourhood(std::span<const int> host_of, int rank) {
  std::map<int, int> host_size;
  std::vector<int> position;  // on its host, by rank
  // Every rank computes the same from the agreed hosts; nothing is exchanged for it.
  for (const int host : host_of) position.push_back(host_size[host]++);
  Neighbourhood found;
  found.shares = static_cast<int>(host_of.size());
  // The smallest host decides: a share needs one owner on every host.
  for (const auto& [host, size] : host_size) found.shares = std::min(found.shares, size);
  const auto me = static_cast<size_t>(rank);
  for (size_t r = 0; r < host_of.size(); ++r) {
    if (host_of[r] == host_of[me]) found.local.ranks.push_back(static_cast<int>(r));
    if (position[r] == position[me] && position[me] < found.shares) {
      found.across.ranks.push_back(static_cast<int>(r));
    }
  }
  found.local.my_index = found.local.IndexOf(rank);
  found.across.my_index = found.across.IndexOf(rank);
  return found;
}

std::vector<Range> Neighbourhood::PartsOf(Range whole) const {
  std::vector<Range> parts;
  for (int i = 0; i < local.size(); ++i) {
    parts.push_back(i < shares ? PartOf(whole, shares, i) : Range{whole.end, whole.end});
  }
  return parts;
}

}  // namespace rabit

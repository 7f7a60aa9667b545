// How the ranks of a group lie on hosts, as far as that decides what they run.
#pragma once

#include <algorithm>
#include <vector>

#include "base/group.h"

namespace rabit {

// Host numbers by position in the group.
inline std::vector<int> HostsOf(const Topology& topology, const Group& group) {
  std::vector<int> hosts;
  for (const int rank : group.ranks) {
    const auto index = static_cast<size_t>(rank);
    if (index < topology.host_of.size()) hosts.push_back(topology.host_of[index]);
  }
  return hosts;
}

inline int CountHosts(const Topology& topology, const Group& group) {
  std::vector<int> hosts = HostsOf(topology, group);
  // Ranks of a host mostly follow each other, and then there is little to sort.
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  std::sort(hosts.begin(), hosts.end());
  return static_cast<int>(std::unique(hosts.begin(), hosts.end()) - hosts.begin());
}

// Several hosts, and one of them with several ranks of the group.
inline bool HasHierarchy(const Topology& topology, const Group& group) {
  const int hosts = CountHosts(topology, group);
  return hosts > 1 && hosts < group.size();
}

}  // namespace rabit

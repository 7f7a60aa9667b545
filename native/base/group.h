// Group: the ranks that take part in a collective.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/processors.h"

namespace rabit {

class TreePlan;

struct Group {
  GroupId id = kWorld;
  std::vector<int> ranks;  // global ranks, ascending; position = rank inside the group
  int my_index = -1;       // this rank's position, -1 if it is not a member
  std::shared_ptr<const TreePlan> plan = {};  // null: none is in force

  int size() const { return static_cast<int>(ranks.size()); }
  bool is_member() const { return my_index >= 0; }
  int IndexOf(int global_rank) const {  // -1 if not a member
    auto it = std::lower_bound(ranks.begin(), ranks.end(), global_rank);
    return it != ranks.end() && *it == global_rank ? static_cast<int>(it - ranks.begin()) : -1;
  }
};

// "0-2, 5"
std::string RankList(std::span<const int> ascending);

// Where every rank runs; identical on all ranks.
struct Topology {
  std::vector<int> host_of;  // global rank -> host number, hosts numbered by first appearance
  std::vector<HostCores> cores_of = {};  // host number -> what its ranks may use

  // Hosts whose ranks all may use `processors`.
  static Topology Alike(std::vector<int> host_of, const Processors& processors);

  bool SameHost(int a, int b) const { return host_of[a] == host_of[b]; }
  const HostCores& CoresAt(int rank) const { return cores_of[host_of[rank]]; }
};

}  // namespace rabit

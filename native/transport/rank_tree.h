// RankTree: which ranks have a control connection.
#pragma once

#include <vector>

#include "base/group.h"

namespace rabit {

// Rank 0 is the root.  Every rank but rank 0 has one parent.
class RankTree {
 public:
  // Every rank below rank 0.
  static RankTree Star(int size);
  // The ranks of a host gather at its lowest rank, and these leaders below rank 0: a rank has at
  // most `fan_out` ranks of its own host and `fan_out` leaders of other hosts right below it.
  static RankTree Over(const Topology& topology, int fan_out);

  int size() const { return static_cast<int>(parents_.size()); }
  int parent(int rank) const { return parents_[static_cast<size_t>(rank)]; }  // -1: rank 0
  const std::vector<int>& children(int rank) const { return children_[static_cast<size_t>(rank)]; }
  // Parent and children, ascending.
  std::vector<int> Neighbours(int rank) const;
  bool is_leaf(int rank) const { return children(rank).empty(); }
  bool AreLinked(int a, int b) const { return parent(a) == b || parent(b) == a; }
  // `rank` and all below it, ascending.
  std::vector<int> Subtree(int rank) const;
  int depth() const;  // messages from the farthest rank to rank 0

 private:
  explicit RankTree(std::vector<int> parents);

  std::vector<int> parents_;
  std::vector<std::vector<int>> children_;
};

}  // namespace rabit

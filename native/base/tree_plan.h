// TreePlan: the trees along which a group's collectives send, one table for each group.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/kind.h"
#include "base/result.h"

namespace rabit {

// A part of the data and its way.  Parents are positions in the group, -1 for the root's.
struct PlannedTree {
  int root = 0;
  int64_t weight = 1;     // its part of the data, of the sum over the trees that share it
  std::vector<int> up;    // parents of the tree that reduces; empty: nothing is reduced
  std::vector<int> down;  // parents of the tree that sends the result; empty: it stays at the root
};

// Of a tree; 0 of one that is empty.
int64_t HopsToRoot(const std::vector<int>& parents, int position);

// Constant, equal on all ranks of the group.
class TreePlan {
 public:
  // Lines "size N", "bytes_min N", "pipeline_bytes N", "wide_sums N" and, for each tree,
  //
  //   allreduce ROOT WEIGHT up P0 P1 … down P0 P1 …
  //   broadcast ROOT WEIGHT down P0 P1 …      of a broadcast from ROOT
  //   reduce ROOT WEIGHT up P0 P1 …           of a reduction to ROOT
  //   allgather ROOT WEIGHT down P0 P1 …      of the part that ROOT brings
  //   reducescatter ROOT WEIGHT up P0 P1 …    of the part that ROOT gets
  //
  //   order P0 P1 …                           where each position of a ring has its rank
  //
  // with N parents, or ranks, each.  kInvalidArgument names the line and what is wrong with it.
  static Result<std::shared_ptr<const TreePlan>> Parse(std::string_view text, int size);

  // The order, and the trees of allreduces, between parts of the group, such as its hosts.
  // `part_of`: the part of each position.  Each of the `parts` has members; the one nearest to the
  // root says where the part hangs.
  std::shared_ptr<const TreePlan> Between(std::span<const int> part_of, int parts) const;

  // Whether there are trees for this.  `root`: a position, of kinds that have one.
  bool Has(Kind kind, int root) const;
  // Whether nothing of this kind is divided among several trees.
  bool HasOneTreeEach(Kind kind) const;
  // Those of an allreduce, or of one root of another kind.
  const std::vector<PlannedTree>& Trees(Kind kind, int root) const;

  int size() const { return size_; }
  // Positions in the group, in the order in which a ring passes them; empty: as they are.
  const std::vector<int>& order() const { return order_; }
  int64_t bytes_min() const { return bytes_min_; }
  // Whether an allreduce that sums in a wider type than that of the tensor follows the trees too: it
  // sends twice as much towards the root.
  bool has_wide_sums() const { return wide_sums_ != 0; }
  // What a link carries in the time of one message's latency.
  int64_t pipeline_bytes() const { return pipeline_bytes_; }

 private:
  friend class TreePlanParser;

  int size_ = 0;
  std::vector<int> order_;
  int64_t bytes_min_ = 0;
  int64_t pipeline_bytes_ = 0;
  int64_t wide_sums_ = 0;
  // By kind, then by root; all trees of an allreduce stand at 0.
  std::array<std::vector<std::vector<PlannedTree>>, kKindTraits.size()> trees_;
};

}  // namespace rabit

#include "transport/rank_tree.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace rabit {
namespace {

// A complete tree over `ranks`, the first at the root.
void Link(const std::vector<int>& ranks, int fan_out, std::vector<int>& parents) {
  for (size_t i = 1; i < ranks.size(); ++i) {
    const size_t above = (i - 1) / static_cast<size_t>(fan_out);
    parents[static_cast<size_t>(ranks[i])] = ranks[above];
  }
}

}  // namespace

RankTree::RankTree(std::vector<int> parents)
    : parents_(std::move(parents)), children_(parents_.size()) {
  for (int rank = 1; rank < size(); ++rank)
    children_[static_cast<size_t>(parent(rank))].push_back(rank);
}

RankTree RankTree::Star(int size) {
  std::vector<int> parents(static_cast<size_t>(size), 0);
  parents[0] = -1;
  return RankTree(std::move(parents));
}

RankTree RankTree::Over(const Topology& topology, int fan_out) {
  RABIT_CHECK(fan_out >= 1, "a tree needs a fan-out of at least one");
  std::vector<std::vector<int>> hosts;
  for (size_t rank = 0; rank < topology.host_of.size(); ++rank) {
    const auto host = static_cast<size_t>(topology.host_of[rank]);
    if (host >= hosts.size()) hosts.resize(host + 1);
    hosts[host].push_back(static_cast<int>(rank));
  }
  std::vector<int> parents(topology.host_of.size(), -1);
  std::vector<int> leaders;
  for (const std::vector<int>& host : hosts) {
    if (host.empty()) continue;
    // Messages of a host leave it once, through its first rank; the others reach that one by shared
    // memory.
    leaders.push_back(host.front());
    Link(host, fan_out, parents);
  }
  // Rank 0 has to come first: it is the root of the negotiation.
  std::sort(leaders.begin(), leaders.end());
  Link(leaders, fan_out, parents);
  return RankTree(std::move(parents));
}

std::vector<int> RankTree::Subtree(int rank) const {
  std::vector<int> all = {rank};
  // The list grows while it is walked, so indices are used: an iterator would be invalid after the
  // first insert.
  for (size_t i = 0; i < all.size(); ++i)
    all.insert(all.end(), children(all[i]).begin(), children(all[i]).end());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<int> RankTree::Neighbours(int rank) const {
  std::vector<int> all = children(rank);
  if (rank > 0) all.insert(all.begin(), parent(rank));
  return all;
}

int RankTree::depth() const {
  int deepest = 0;
  for (int rank = 0; rank < size(); ++rank) {
    int depth = 0;
    for (int at = rank; parent(at) >= 0; at = parent(at)) ++depth;
    deepest = std::max(deepest, depth);
  }
  return deepest;
}

}  // namespace rabit

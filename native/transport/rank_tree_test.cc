#include "transport/rank_tree.h"

#include <vector>

#include "testing/test.h"
#include "transport/connect.h"

namespace rabit {
namespace {

TEST(RankTree, a_star_has_every_rank_below_rank_0) {
  const RankTree star = RankTree::Star(4);

  EXPECT_EQ(star.parent(0), -1);
  EXPECT_TRUE((star.children(0) == std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(star.is_leaf(3));
  EXPECT_EQ(star.depth(), 1);
}

TEST(RankTree, ranks_of_a_host_gather_at_its_lowest_rank) {
  // Hosts 0, 1 and 2 with 3, 2 and 1 ranks, out of order.
  const RankTree tree = RankTree::Over({{0, 1, 0, 2, 1, 0}}, 8);

  EXPECT_TRUE((tree.children(0) == std::vector<int>{1, 2, 3, 5}));
  EXPECT_TRUE((tree.children(1) == std::vector<int>{4}));
  EXPECT_TRUE((tree.Subtree(1) == std::vector<int>{1, 4}));
  EXPECT_TRUE((tree.Subtree(0) == std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tree.depth(), 2);
}

TEST(RankTree, every_rank_is_reached_once_and_the_fan_out_holds) {
  for (const int local : {1, 3, 8}) {
    for (const int fan_out : {1, 2, 8}) {
      Topology topology;
      for (int rank = 0; rank < 100; ++rank) topology.host_of.push_back(rank / local);

      const RankTree tree = RankTree::Over(topology, fan_out);

      EXPECT_EQ(tree.Subtree(0).size(), 100u);
      for (int rank = 0; rank < 100; ++rank) {
        EXPECT_LE(tree.children(rank).size(), static_cast<size_t>(2 * fan_out));
        if (rank > 0) {
          EXPECT_TRUE(tree.AreLinked(rank, tree.parent(rank)));
        }
      }
    }
  }
}

TEST(AddressOfLink, links_take_the_addresses_of_a_rank_in_turn) {
  EXPECT_EQ(AddressOfLink("10.0.0.1:5", 0), "10.0.0.1:5");
  EXPECT_EQ(AddressOfLink("10.0.0.1:5", 3), "10.0.0.1:5");
  for (const int turn : {0, 2, 4}) {
    EXPECT_EQ(AddressOfLink("10.0.0.1:5,[::2]:5", turn), "10.0.0.1:5");
    EXPECT_EQ(AddressOfLink("10.0.0.1:5,[::2]:5", turn + 1), "[::2]:5");
  }
}

}  // namespace
}  // namespace rabit

#include "engine/failure_board.h"

#include "testing/test.h"

namespace rabit {
namespace {

TEST(FailureBoard, the_first_verdict_is_kept_and_every_suspicion_gets_it) {
  FailureBoard board([] {});
  EXPECT_FALSE(board.has_verdict());

  board.Settle(PeerLost(2, "rank 2 ended"));
  board.Settle(PeerLost(1, "rank 1 closed its connections"));

  EXPECT_TRUE(board.has_verdict());
  EXPECT_EQ(board.verdict().culprit(), 2);
  EXPECT_EQ(board.Resolve(PeerLost(1, "the connection broke"), Deadline{}).culprit(), 2);
}

TEST(FailureBoard, a_suspicion_stands_where_nobody_settles) {
  int wakes = 0;
  FailureBoard board([&wakes] { ++wakes; });

  const Status found = board.Resolve(PeerLost(3, "the connection broke"), Deadline{});

  EXPECT_EQ(found.culprit(), 3);
  EXPECT_EQ(board.suspicion().culprit(), 3);
  EXPECT_EQ(wakes, 1);
}

}  // namespace
}  // namespace rabit

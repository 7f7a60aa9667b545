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
  EXPECT_EQ(board.Resolve(kWholeEngine, PeerLost(1, "the connection broke"), Deadline{}).culprit(),
            2);
}

TEST(FailureBoard, a_suspicion_stands_where_nobody_settles) {
  int wakes = 0;
  FailureBoard board([&wakes] { ++wakes; });

  const Status found = board.Resolve(kWholeEngine, PeerLost(3, "the connection broke"), Deadline{});

  EXPECT_EQ(found.culprit(), 3);
  ASSERT_EQ(board.suspicions().size(), 1u);
  EXPECT_EQ(board.suspicions()[0].why.culprit(), 3);
  EXPECT_EQ(wakes, 1);
}

TEST(FailureBoard, a_verdict_on_a_backend_is_for_those_who_use_it) {
  FailureBoard board([] {});
  board.Suspect(2, PeerLost(5, "server 1 is lost"));
  EXPECT_EQ(board.suspicions()[0].scope, 2);

  EXPECT_TRUE(board.SettleBackend(2, PeerLost(5, "backend 'ps' has failed")));
  (void)board.SettleBackend(2, PeerLost(6, "later"));
  EXPECT_EQ(board.verdict_on(2).culprit(), 5);

  EXPECT_TRUE(board.suspicions().empty());
  EXPECT_FALSE(board.has_verdict());
  EXPECT_OK(board.verdict_on(1));
  EXPECT_OK(board.verdict_on(kWholeEngine));
  EXPECT_EQ(board.Resolve(2, TimedOut("mine"), Deadline{}).culprit(), 5);
  board.Settle(PeerLost(1, "rank 1 ended"));
  EXPECT_EQ(board.verdict_on(1).culprit(), 1);
  EXPECT_EQ(board.verdict_on(2).culprit(), 5);  // the first cause
}

TEST(FailureBoard, a_backend_that_an_operation_has_gone_on_after_does_not_end_alone) {
  FailureBoard board([] {});
  EXPECT_OK(board.GoOnAfter(1));
  EXPECT_FALSE(board.SettleBackend(1, PeerLost(4, "gone")));
  board.EndAfter(1);

  EXPECT_EQ(board.GoOnAfter(1).culprit(), 4);  // too late
  EXPECT_OK(board.GoOnAfter(2));
  board.EndAfter(2);
  EXPECT_TRUE(board.SettleBackend(2, PeerLost(4, "gone")));
}

}  // namespace
}  // namespace rabit

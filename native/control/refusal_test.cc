// A rank that turns its own tensor down: the others fail that round once, and none waits.
#include <functional>
#include <string>
#include <vector>

#include "control/announcer.h"
#include "testing/simulator/controller_job.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::ControllerJob;

const char* const kName = "w";

Announcement OneTensor(int32_t token) {
  Announcement announcement;
  Announcement::Entry entry;
  entry.name = kName;
  entry.signature.shape = {3};
  entry.token = token;
  announcement.ready.push_back(std::move(entry));
  return announcement;
}

Status Why(int rank) {
  return InvalidArgument("rank " + std::to_string(rank) + " refused it").WithCulprit(rank);
}

struct Outcome {
  int ready = 0;
  std::vector<Rejection> rejected;
};

Outcome Take(ControllerJob& job, int rank) {
  Outcome outcome;
  for (const Agreement& agreement : job.agreed(rank)) {
    outcome.ready += static_cast<int>(agreement.ready.size());
    for (const Rejection& each : agreement.rejected) outcome.rejected.push_back(each);
  }
  job.agreed(rank).clear();
  return outcome;
}

void ExpectFailed(ControllerJob& job, int rank, int culprit) {
  const Outcome outcome = Take(job, rank);
  EXPECT_EQ(outcome.ready, 0) << rank;
  ASSERT_EQ(outcome.rejected.size(), 1u);
  EXPECT_EQ(outcome.rejected[0].name, kName);
  EXPECT_EQ(outcome.rejected[0].token, 5 + rank);
  EXPECT_EQ(outcome.rejected[0].why.code(), Code::kInvalidArgument);
  EXPECT_EQ(outcome.rejected[0].why.culprit(), culprit);
}

// A round in which everybody takes part.
void ExpectAgrees(ControllerJob& job) {
  for (int rank = 0; rank < job.size(); ++rank) job.Announce(rank, OneTensor(50 + rank));
  ASSERT_OK(job.Deliver());
  for (int rank = 0; rank < job.size(); ++rank) {
    const Outcome outcome = Take(job, rank);
    EXPECT_EQ(outcome.ready, 1) << "rank " << rank;
    EXPECT_EQ(outcome.rejected.size(), 0u) << "rank " << rank;
  }
}

std::vector<RankTree> Trees() {
  return {RankTree::Star(4), RankTree::Over({std::vector<int>(4, 0)}, 1),
          RankTree::Over({std::vector<int>(7, 0)}, 2)};
}

// `is_known`: the tensor has an id before.
void ForEachJob(const std::function<void(ControllerJob&, int refuser)>& run) {
  for (const RankTree& tree : Trees()) {
    for (int refuser = 0; refuser < tree.size(); ++refuser) {
      for (const bool is_known : {false, true}) {
        ControllerJob job(tree);
        if (is_known) ExpectAgrees(job);
        run(job, refuser);
        ExpectAgrees(job);
        ExpectAgrees(job);
      }
    }
  }
}

// A combiner that has passed on one rank's announcement waits in vain for it with the others'.
void DeliverHeld(ControllerJob& job) {
  ASSERT_OK(job.Deliver());
  for (int depth = 0; depth < job.size(); ++depth) job.Pass(std::chrono::milliseconds(150));
  ASSERT_OK(job.Deliver());
}

void AnnounceButFor(ControllerJob& job, int refuser) {
  for (int rank = 0; rank < job.size(); ++rank)
    if (rank != refuser) job.Announce(rank, OneTensor(5 + rank));
}

void ExpectOthersFailed(ControllerJob& job, int refuser) {
  for (int rank = 0; rank < job.size(); ++rank)
    if (rank != refuser) ExpectFailed(job, rank, refuser);
  EXPECT_EQ(Take(job, refuser).rejected.size(), 0u);
}

TEST(Refusal, ranks_that_wait_are_told) {
  ForEachJob([](ControllerJob& job, int refuser) {
    AnnounceButFor(job, refuser);
    ASSERT_OK(job.Deliver());
    job.Refuse(refuser, {kName}, Why(refuser));
    ASSERT_OK(job.Deliver());

    ExpectOthersFailed(job, refuser);
  });
}

TEST(Refusal, ranks_that_come_later_are_told) {
  ForEachJob([](ControllerJob& job, int refuser) {
    job.Refuse(refuser, {kName}, Why(refuser));
    ASSERT_OK(job.Deliver());
    AnnounceButFor(job, refuser);

    ExpectOthersFailed(job, refuser);
  });
}

TEST(Refusal, announcements_that_cross_it_fail_once) {
  ForEachJob([](ControllerJob& job, int refuser) {
    AnnounceButFor(job, refuser);
    job.Refuse(refuser, {kName}, Why(refuser));
    ASSERT_OK(job.Deliver());

    ExpectOthersFailed(job, refuser);
  });
}

TEST(Refusal, the_next_round_of_the_refusing_rank_may_be_announced_at_once) {
  ForEachJob([](ControllerJob& job, int refuser) {
    job.Refuse(refuser, {kName}, Why(refuser));
    job.Announce(refuser, OneTensor(70));
    AnnounceButFor(job, refuser);
    ASSERT_OK(job.Deliver());
    for (int rank = 0; rank < job.size(); ++rank)
      if (rank != refuser) ExpectFailed(job, rank, refuser);
    AnnounceButFor(job, refuser);
    DeliverHeld(job);

    for (int rank = 0; rank < job.size(); ++rank) EXPECT_EQ(Take(job, rank).ready, 1) << rank;
  });
}

TEST(Refusal, if_every_rank_refuses_nothing_is_left_over) {
  for (const bool is_delivered : {false, true}) {
    ForEachJob([is_delivered](ControllerJob& job, int first) {
      for (int i = 0; i < job.size(); ++i) {
        const int rank = (first + i) % job.size();
        job.Refuse(rank, {kName}, Why(rank));
        if (is_delivered) {
          ASSERT_OK(job.Deliver());
        }
      }
      ASSERT_OK(job.Deliver());

      for (int rank = 0; rank < job.size(); ++rank)
        EXPECT_EQ(Take(job, rank).rejected.size(), 0u) << rank;
    });
  }
}

TEST(Refusal, a_rank_that_is_no_member_keeps_it_to_itself) {
  ControllerJob job(3);
  job.AddGroup({1, {0, 1}});
  ASSERT_OK(job.Deliver());
  job.ForgetTraffic();
  job.Refuse(2, {kName, 1}, Why(2));

  EXPECT_EQ(job.ToRoot().messages, 0u);
}

TEST(Refusal, a_round_that_fails_in_a_group_without_this_rank_is_forgotten) {
  Announcer announcer(2, 3);
  announcer.AddGroup({1, {0, 1}});
  AgreeMessage message;
  message.cycle = 1;
  message.rejected.push_back({{kName, 1}, Why(0), true});
  ASSERT_OK(announcer.Apply(std::move(message)));

  Announcement mine = OneTensor(5);
  mine.ready[0].signature.group = 1;
  EXPECT_TRUE(announcer.Prepare(mine, 0).full.empty());
  const auto local = announcer.TakeLocal();

  ASSERT_TRUE(local.has_value());
  ASSERT_EQ(local->rejected.size(), 1u);
  EXPECT_EQ(local->rejected[0].why.culprit(), -1);
}

TEST(Refusal, a_tensor_of_a_group_that_was_removed_is_refused) {
  ControllerJob job(3);
  job.AddGroup({1, {0, 1}});
  Announcement late = OneTensor(5);
  late.ready[0].signature.group = 1;
  // Rank 1 has not carried the removal out yet.
  job.RemoveGroup(0, 1);
  job.Announce(1, late);
  ASSERT_OK(job.Deliver());
  EXPECT_EQ(Take(job, 1).rejected.size(), 1u);

  job.RemoveGroup(1, 1);
  job.Announce(1, late);
  EXPECT_EQ(Take(job, 1).rejected.size(), 1u);
  EXPECT_TRUE(job.failure(1).ok());
}

}  // namespace
}  // namespace rabit

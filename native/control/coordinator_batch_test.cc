#include <string>
#include <vector>

#include "control/coordinator.h"
#include "testing/simulator/controller_job.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::ControllerJob;

constexpr int kRanks = 4;

Announcement Tensors(int first, int end) {
  Announcement mine;
  for (int i = first; i < end; ++i) {
    Announcement::Entry entry;
    entry.name = "t" + std::to_string(i);
    entry.signature.shape = {i + 1};
    mine.ready.push_back(std::move(entry));
  }
  return mine;
}

// A job whose ranks know eight tensors by number.
struct WarmJob : ControllerJob {
  WarmJob() : ControllerJob(kRanks) {
    for (int rank = 0; rank < kRanks; ++rank) Announce(rank, Tensors(0, 8));
    EXPECT_OK(Deliver());
    for (int rank = 0; rank < kRanks; ++rank) agreed(rank).clear();
  }
};

size_t Ready(ControllerJob& job, int rank) {
  size_t count = 0;
  for (const Agreement& agreement : job.agreed(rank)) count += agreement.ready.size();
  return count;
}

TEST(CoordinatorBatch, equal_messages_are_one_agreement) {
  WarmJob job;
  for (int rank = kRanks - 1; rank >= 0; --rank) job.Announce(rank, Tensors(0, 8));
  ASSERT_OK(job.Deliver());

  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(job.agreed(rank).size(), 1u);
    EXPECT_EQ(Ready(job, rank), 8u);
  }
}

TEST(CoordinatorBatch, a_rank_that_cuts_its_step_elsewhere_is_understood) {
  WarmJob job;
  for (int rank : {0, 1}) job.Announce(rank, Tensors(0, 8));
  ASSERT_OK(job.Deliver());
  job.Announce(2, Tensors(0, 5));
  job.Announce(3, Tensors(0, 8));
  ASSERT_OK(job.Deliver());
  EXPECT_EQ(Ready(job, 1), 5u);

  job.Announce(2, Tensors(5, 8));
  ASSERT_OK(job.Deliver());

  EXPECT_EQ(Ready(job, 1), 8u);
}

TEST(CoordinatorBatch, a_stall_names_who_has_come_and_for_how_long) {
  WarmJob job;
  for (int rank : {0, 3, 1}) {
    job.Announce(rank, Tensors(0, 8));
    ASSERT_OK(job.Deliver());
    job.Pass(std::chrono::microseconds(10));
  }

  job.Pass(std::chrono::microseconds(2'499'970));
  const std::vector<std::string> waiting = job.Waiting(0);

  ASSERT_EQ(waiting.size(), 8u);
  EXPECT_TRUE(waiting[0].find("ready on ranks 0, 1, 3, waits 2.5 s for rank 2") !=
              std::string::npos)
      << waiting[0];
}

TEST(CoordinatorBatch, a_rank_that_joins_or_stops_ends_the_waiting) {
  for (const bool joins : {true, false}) {
    WarmJob job;
    for (int rank : {0, 1, 3}) job.Announce(rank, Tensors(0, 8));
    ASSERT_OK(job.Deliver());
    Announcement last;
    last.wants_stop = !joins;
    if (joins) {
      last.ready.emplace_back();
      last.ready[0].name = "join";
      last.ready[0].signature.kind = Kind::kJoin;
    }
    job.Announce(2, last);
    ASSERT_OK(job.Deliver());

    EXPECT_EQ(Ready(job, 0), joins ? 8u : 0u);
    size_t rejected = 0;
    for (const Agreement& agreement : job.agreed(0)) rejected += agreement.rejected.size();
    EXPECT_EQ(rejected, joins ? 0u : 8u);
  }
}

TEST(CoordinatorBatch, a_change_of_one_rank_is_a_mismatch_by_name) {
  WarmJob job;
  for (int rank : {0, 1, 3}) job.Announce(rank, Tensors(0, 8));
  ASSERT_OK(job.Deliver());
  Announcement other = Tensors(0, 8);
  other.ready[6].signature.shape = {70};
  job.Announce(2, other);
  ASSERT_OK(job.Deliver());

  EXPECT_EQ(Ready(job, 0), 7u);
  ASSERT_EQ(job.agreed(0).back().rejected.size(), 1u);
  const Status& why = job.agreed(0).back().rejected[0].why;
  EXPECT_EQ(why.culprit(), 2);
  EXPECT_TRUE(why.message().find("'t6'") != std::string::npos) << why;
}

}  // namespace
}  // namespace rabit

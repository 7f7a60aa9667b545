// Ranks that wait for each other end the job, and no others do.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "control/coordinator.h"
#include "testing/test.h"

namespace rabit {
namespace {

constexpr int64_t kLook = 10'000'000, kSecond = 20'000'000;

// A coordinator, and what the ranks tell it.
class Job {
 public:
  explicit Job(int size)
      : size_(size), coordinator_([size] {
          CoordinatorOptions options;
          options.size = size;
          return options;
        }()) {}

  void Submit(int rank, const std::string& name, int64_t now_us = 0) {
    AnnounceMessage message;
    Announcement::Entry entry;
    entry.name = name;
    entry.signature.shape = {4};
    message.full.push_back(std::move(entry));
    coordinator_.OnAnnounce(rank, message, now_us);
    ++submissions_[static_cast<size_t>(rank)];
  }
  // Every rank answers the question of the tick; `busy`: whose callers do something else.
  Status Look(int64_t now_us, const std::vector<int>& busy = {}) {
    coordinator_.OnTick(now_us);
    const std::optional<AgreeMessage> asked = coordinator_.TakeAgreement();
    if (!asked || !asked->compares) return Internal("nobody was asked");
    for (int rank = 0; rank < size_; ++rank) {
      ScheduleDigest digest;
      digest.cycle = asked->cycle;
      digest.submissions = submissions_[static_cast<size_t>(rank)];
      digest.are_callers_stuck = std::find(busy.begin(), busy.end(), rank) == busy.end();
      coordinator_.OnDigest(rank, digest, now_us + rank);
    }
    return coordinator_.failure();
  }

 private:
  const int size_;
  std::vector<uint64_t> submissions_ = std::vector<uint64_t>(16);
  Coordinator coordinator_;
};

TEST(CoordinatorCircle, two_ranks_that_wait_for_each_other_are_named_at_the_second_look) {
  Job job(2);
  job.Submit(0, "a");
  job.Submit(1, "b");
  EXPECT_OK(job.Look(kLook));

  const Status circle = job.Look(kSecond);

  EXPECT_EQ(circle.code(), Code::kMismatch);
  EXPECT_TRUE(testing::Has(circle.message(),
                           "rank 0 waits for allreduce 'a', which rank 1 has not submitted; "
                           "rank 1 waits for allreduce 'b', which rank 0 has not submitted"))
      << circle;
}

TEST(CoordinatorCircle, three_ranks_may_wait_in_a_ring) {
  Job job(3);
  for (const int rank : {0, 1}) job.Submit(rank, "a");  // for rank 2
  job.Submit(2, "b");                                   // for both
  EXPECT_OK(job.Look(kLook));
  const Status circle = job.Look(kSecond);
  EXPECT_EQ(circle.code(), Code::kMismatch);
  EXPECT_TRUE(testing::Has(circle.message(), "rank 2 waits for allreduce 'b', which rank 0 has"))
      << circle;
}

TEST(CoordinatorCircle, whoever_submits_between_the_looks_goes_on) {
  Job job(2);
  job.Submit(0, "a");
  job.Submit(1, "b");
  EXPECT_OK(job.Look(kLook));
  job.Submit(1, "c", kLook + 5'000'000);
  EXPECT_OK(job.Look(kSecond));
  EXPECT_EQ(job.Look(2 * kSecond).code(), Code::kMismatch);  // and then does not
}

TEST(CoordinatorCircle, a_rank_whose_callers_do_something_else_goes_on) {
  Job job(2);
  job.Submit(0, "a");
  job.Submit(1, "b");
  for (int64_t look = 1; look <= 5; ++look) EXPECT_OK(job.Look(look * kLook, {0}));
  // Once is not enough: it may have looked up from its wait.
  EXPECT_OK(job.Look(6 * kLook));
  EXPECT_OK(job.Look(7 * kLook, {1}));
  EXPECT_OK(job.Look(8 * kLook));
  EXPECT_EQ(job.Look(9 * kLook).code(), Code::kMismatch);
}

// Rank 2 computes, and both others wait for it.
TEST(CoordinatorCircle, ranks_that_wait_for_one_that_goes_on_are_no_circle) {
  Job job(3);
  job.Submit(0, "a");
  job.Submit(1, "b");
  for (int64_t look = 1; look <= 5; ++look) EXPECT_OK(job.Look(look * kLook, {0, 2}));
  for (int64_t look = 6; look <= 10; ++look) EXPECT_OK(job.Look(look * kLook, {1, 2}));
}

}  // namespace
}  // namespace rabit

// Names that do not come again leave the tables early.
#include <string>

#include "testing/simulator/controller_job.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::ControllerJob;

// Of names that rank 0 and the others keep; see RecordTable.
constexpr uint64_t kKeptMax = 32;

class NumberedJob {
 public:
  explicit NumberedJob(size_t capacity)
      : job_(RankTree::Star(2), {.controller = {.cache_capacity = capacity}}) {}

  // One message of a rank with the names from `first` to `last`.
  void Announce(int rank, int first, int last) {
    Announcement mine;
    for (int number = first; number <= last; ++number)
      mine.ready.push_back({"x.noname." + std::to_string(number), Signature()});
    job_.Announce(rank, mine);
  }

  void AnnounceNamed(int rank, const std::string& name) {
    Announcement mine;
    mine.ready.push_back({name, Signature()});
    job_.Announce(rank, mine);
  }

  // How many tensors both ranks have been told to run; forgets it.
  size_t Agreed() {
    EXPECT_OK(job_.Deliver());
    size_t ready[2] = {0, 0};
    for (int rank = 0; rank < 2; ++rank) {
      for (const Agreement& each : job_.agreed(rank)) ready[rank] += each.ready.size();
      job_.agreed(rank).clear();
    }
    EXPECT_EQ(ready[0], ready[1]);
    return ready[0];
  }

  uint64_t Counter(const char* name) const { return job_.Counter(1, name); }

 private:
  ControllerJob job_;
};

TEST(NumberedNames, leave_their_room_to_names_that_come_again) {
  NumberedJob job(64);
  for (int rank : {0, 1}) job.AnnounceNamed(rank, "w");
  EXPECT_EQ(job.Agreed(), 1u);

  for (int number = 1; number <= 200; ++number) {
    for (int rank : {0, 1}) job.Announce(rank, number, number);
    EXPECT_EQ(job.Agreed(), 1u);
  }
  for (int rank : {0, 1}) job.AnnounceNamed(rank, "w");
  EXPECT_EQ(job.Agreed(), 1u);

  EXPECT_EQ(job.Counter("announced_cached"), 1u);
  EXPECT_LE(job.Counter("tensors_known"), kKeptMax + 1);
}

TEST(NumberedNames, are_as_many_as_are_in_flight_and_few_again_afterwards) {
  NumberedJob job(1 << 14);
  for (int rank : {0, 1}) job.Announce(rank, 1, 300);
  EXPECT_EQ(job.Agreed(), 300u);
  EXPECT_EQ(job.Counter("tensors_known"), 300u);

  for (int number = 301; number <= 700; ++number) {
    for (int rank : {0, 1}) job.Announce(rank, number, number);
    EXPECT_EQ(job.Agreed(), 1u);
  }

  EXPECT_LE(job.Counter("tensors_known"), kKeptMax);
}

TEST(NumberedNames, of_one_rank_wait_for_the_other) {
  NumberedJob job(1 << 14);
  for (int number = 1; number <= 100; ++number) job.Announce(0, number, number);
  EXPECT_EQ(job.Agreed(), 0u);

  for (int number = 1; number <= 100; ++number) job.Announce(1, number, number);

  EXPECT_EQ(job.Agreed(), 100u);
}

TEST(NumberedNames, that_come_again_are_agreed_again) {
  NumberedJob job(1 << 14);
  for (int turn = 0; turn < 2; ++turn) {
    for (int number = 1; number <= 50; ++number) {
      for (int rank : {0, 1}) job.Announce(rank, number, number);
      EXPECT_EQ(job.Agreed(), 1u);
    }
  }
}

}  // namespace
}  // namespace rabit

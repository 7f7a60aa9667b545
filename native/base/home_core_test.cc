#include "base/home_core.h"

#include <sched.h>

#include "testing/test.h"

namespace rabit {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

HostCores Shared(int ranks, const Processors& processors) {
  return ShareCores(std::vector<Processors>(static_cast<size_t>(ranks), processors));
}

std::vector<int> Homes(int ranks, const Processors& processors) {
  std::vector<int> homes;
  for (int index = 0; index < ranks; ++index) {
    homes.push_back(HomeCore::Of(index, Shared(ranks, processors), processors).core());
  }
  return homes;
}

TEST(HomeCore, ranks_that_share_cores_are_spread_evenly) {
  EXPECT_EQ(Homes(4, {0, 1}), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(Homes(6, {2, 7}), (std::vector<int>{2, 2, 2, 7, 7, 7}));
  EXPECT_EQ(Homes(3, {5}), (std::vector<int>{5, 5, 5}));
}

TEST(HomeCore, ranks_that_cannot_be_spread_evenly_have_none) {
  EXPECT_EQ(Homes(3, {0, 1}), (std::vector<int>{-1, -1, -1}));
}

TEST(HomeCore, ranks_with_a_core_each_and_ranks_that_were_bound_have_none) {
  EXPECT_EQ(Homes(2, {0, 1}), (std::vector<int>{-1, -1}));
  const std::vector<Processors> bound{{0}, {0}, {1}, {1}};
  EXPECT_EQ(HomeCore::Of(0, ShareCores(bound), {0}).core(), -1);
}

// The kernel may move the thread at any moment, so one of several journeys has to be seen to end.
bool ComesHome(HomeCore& home) {
  for (int journey = 1; journey <= 100; ++journey) {
    home.Return(Deadline() + journey * hours(1));
    if (::sched_getcpu() == home.core()) return true;
  }
  return false;
}

TEST(HomeCore, a_thread_comes_home_and_may_go_anywhere_as_before) {
  const Processors before = FindProcessors();
  for (const int core : before) {
    HomeCore home(core, static_cast<int>(before.size()));

    EXPECT_TRUE(ComesHome(home)) << core;
    EXPECT_EQ(FindProcessors(), before);
  }
}

TEST(HomeCore, a_thread_that_may_use_fewer_processors_is_left_alone) {
  const Processors before = FindProcessors();
  if (before.size() < 2) return;
  cpu_set_t all;
  cpu_set_t first;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&first);
  CPU_SET(before[0], &first);
  ASSERT_EQ(::sched_setaffinity(0, sizeof first, &first), 0);

  HomeCore home(before[1], static_cast<int>(before.size()));
  home.Return(Deadline() + hours(1));
  const Processors after = FindProcessors();
  ASSERT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);

  EXPECT_EQ(after, Processors{before[0]});
}

TEST(HomeCore, a_thread_that_is_away_is_sent_but_not_again_at_once) {
  HomeCore home(1, 2);
  const Deadline start = Deadline() + hours(1);

  EXPECT_FALSE(home.IsDue(1, start));
  EXPECT_TRUE(home.IsDue(0, start));
  EXPECT_FALSE(home.IsDue(0, start + microseconds(500)));
  EXPECT_TRUE(home.IsDue(0, start + milliseconds(2)));
  EXPECT_FALSE(HomeCore().IsDue(0, start));
}

}  // namespace
}  // namespace rabit

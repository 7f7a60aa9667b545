#include "base/core_place.h"

#include "testing/test.h"

namespace rabit {
namespace {

TEST(CorePlace, is_the_core_that_was_told_last_and_no_other) {
  CorePlace place{};

  place.Tell(3);
  EXPECT_TRUE(place.Is(3));
  place.Tell(4);

  EXPECT_TRUE(place.Is(4));
  EXPECT_FALSE(place.Is(3));
}

TEST(CorePlace, two_unknown_cores_are_not_the_same) {
  CorePlace place{};

  EXPECT_FALSE(place.Is(0));
}

TEST(CorePlace, this_core_is_the_one_that_the_thread_may_run_on) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &before)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);

    EXPECT_EQ(ThisCore(), static_cast<uint32_t>(core) + 1);
  }
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace
}  // namespace rabit

#include "base/spin_wait.h"

#include "testing/test.h"

namespace rabit {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;

// Long enough ago, or far enough ahead, that the real clock does not matter.
const Deadline kPast = std::chrono::steady_clock::now() - hours(1);
const Deadline kFuture = std::chrono::steady_clock::now() + hours(1);

TEST(SpinWait, spins_for_its_budget_and_then_sleeps) {
  SpinBudget budget(microseconds(64));
  SpinWait wait(budget);
  EXPECT_TRUE(wait.MaySpin(kPast));
  EXPECT_TRUE(wait.MaySpin(kPast + microseconds(63)));
  EXPECT_FALSE(wait.MaySpin(kPast + microseconds(64)));
  EXPECT_TRUE(budget.Begin() == microseconds(32));

  // After the sleep it begins anew, with what is left.
  EXPECT_TRUE(wait.MaySpin(kPast + microseconds(500)));
  EXPECT_FALSE(wait.MaySpin(kPast + microseconds(532)));
}

TEST(SpinWait, what_comes_in_time_restores_the_budget) {
  SpinBudget budget(microseconds(64));
  budget.EndedInSleep();
  SpinWait wait(budget);
  EXPECT_TRUE(wait.MaySpin(kPast));

  wait.OnFound();

  EXPECT_TRUE(budget.Begin() == microseconds(64));
}

TEST(SpinWait, what_comes_without_a_spin_teaches_nothing) {
  SpinBudget budget(microseconds(64));
  budget.EndedInSleep();

  SpinWait(budget).OnFound();

  EXPECT_TRUE(budget.Begin() == microseconds(32));
}

TEST(SpinWait, a_core_that_came_back_late_counts_as_a_sleep) {
  for (const bool yields : {false, true}) {
    SpinBudget budget(microseconds(64), yields);
    SpinWait wait(budget);
    EXPECT_TRUE(wait.MaySpin(kPast));
    wait.OnFound();
    EXPECT_TRUE(budget.Begin() == microseconds(yields ? 32 : 64));

    EXPECT_TRUE(wait.MaySpin(kFuture));
    wait.OnFound();
    EXPECT_TRUE(budget.Begin() == microseconds(64));
  }
}

TEST(SpinWait, the_clock_is_due_at_the_first_look_and_then_now_and_then) {
  SpinBudget budget(microseconds(64));
  SpinWait wait(budget, 4);
  for (int look = 0; look < 12; ++look) EXPECT_EQ(wait.IsClockDue(), look % 4 == 0);
}

// Giving the core away costs more than the clock, and the budget may be over when it comes back.
TEST(SpinWait, the_clock_is_always_due_where_the_core_is_given_away) {
  SpinBudget budget(microseconds(64));
  SpinWait wait(budget, 4);
  EXPECT_TRUE(wait.MaySpin(kPast, true));
  for (int look = 0; look < 12; ++look) EXPECT_TRUE(wait.IsClockDue());
}

}  // namespace
}  // namespace rabit

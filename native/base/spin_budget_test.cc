#include "base/spin_budget.h"

#include "testing/test.h"

namespace rabit {
namespace {

using std::chrono::microseconds;

TEST(SpinBudget, waits_that_end_in_sleep_use_it_up_and_one_in_32_tries_again) {
  SpinBudget budget(microseconds(64));
  for (int i = 0; i < 10; ++i) {
    budget.Begin();
    budget.EndedInSleep();
  }
  int tries = 0;
  for (int i = 0; i < 320; ++i) {
    if (budget.Begin() == microseconds(64)) ++tries;
    budget.EndedInSleep();
  }
  EXPECT_EQ(tries, 10);
}

TEST(SpinBudget, a_spin_that_pays_off_restores_it) {
  SpinBudget budget(microseconds(64));
  for (int i = 0; i < 10; ++i) budget.EndedInSleep();
  budget.PaidOff();

  EXPECT_TRUE(budget.Begin() == microseconds(64));
}

TEST(SpinBudgets, waits_of_the_engine_do_not_use_up_what_callers_may_spin) {
  SpinBudgets budgets(microseconds(50), microseconds(200));
  for (int i = 0; i < 10; ++i) budgets.current().EndedInSleep();
  EXPECT_TRUE(budgets.current().Begin() == microseconds(0));

  budgets.SetWaiter(Waiter::kCaller);

  EXPECT_TRUE(budgets.current().Begin() == microseconds(200));
}

TEST(SpinBudget, it_rests_whether_it_yields_or_not) {
  for (const bool yields : {false, true}) {
    SpinBudget::Rest(yields);

    EXPECT_EQ(SpinBudget(microseconds(64), yields).yields(), yields);
  }
}

TEST(SpinBudget, zero_stays_zero) {
  SpinBudget budget(microseconds(0));
  budget.PaidOff();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(budget.Begin() == microseconds(0));
}

}  // namespace
}  // namespace rabit

#include "base/spin_times.h"

#include "testing/test.h"

namespace rabit {
namespace {

using std::chrono::microseconds;

TEST(SpinTimes, the_users_time_comes_before_the_choice) {
  const SpinTimes chosen = SpinTimesFor(-1, 1);
  EXPECT_FALSE(chosen.yields);
  EXPECT_TRUE(chosen.caller > chosen.background);
  EXPECT_TRUE(SpinTimesFor(-1, 1 << 20).yields);

  const SpinTimes set = SpinTimesFor(7, 1);

  EXPECT_TRUE(set.background == microseconds(7));
  EXPECT_TRUE(set.caller == microseconds(7));
}

TEST(SpinTimes, waits_on_sockets_always_give_the_core_away) {
  const SpinTimes sockets = SocketSpinTimesFor(-1, 1);

  EXPECT_TRUE(sockets.yields);
  EXPECT_TRUE(sockets.caller == SpinTimesFor(-1, 1).caller);
}

TEST(SpinTimes, callers_and_the_engine_have_budgets_of_their_own) {
  SpinBudgets budgets =
      SpinTimes{.background = microseconds(50), .caller = microseconds(200)}.Budgets();
  EXPECT_TRUE(budgets.current().Begin() == microseconds(50));

  budgets.SetWaiter(Waiter::kCaller);

  EXPECT_TRUE(budgets.current().Begin() == microseconds(200));
}

TEST(SpinTimes, a_core_that_came_back_late_counts_as_a_sleep) {
  SpinBudget yields(microseconds(64), true);
  SpinBudget pauses(microseconds(64));
  const auto long_ago = std::chrono::steady_clock::now() - microseconds(1);
  EndInTime(yields, long_ago, true);
  EndInTime(pauses, long_ago, false);
  EXPECT_TRUE(yields.Begin() == microseconds(32));
  EXPECT_TRUE(pauses.Begin() == microseconds(64));

  EndInTime(yields, std::chrono::steady_clock::now() + std::chrono::hours(1), true);

  EXPECT_TRUE(yields.Begin() == microseconds(64));
}

}  // namespace
}  // namespace rabit

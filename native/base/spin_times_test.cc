#include "base/spin_times.h"

#include "testing/test.h"

namespace rabit {
namespace {

using std::chrono::microseconds;

constexpr HostCores kOwn{.ranks = 2, .total = 4, .each = 2, .least = 4};
constexpr HostCores kShared{.ranks = 4, .total = 2, .each = 0, .least = 2};

TEST(SpinTimes, the_users_time_comes_before_the_choice) {
  for (const HostCores& cores : {kOwn, kShared}) {
    const SpinTimes set = SpinTimesFor(7, cores);
    EXPECT_TRUE(set.background == microseconds(7));
    EXPECT_TRUE(set.caller == microseconds(7));
    EXPECT_EQ(set.yields, cores.are_shared());
  }
}

TEST(SpinTimes, are_chosen_by_the_cores_of_the_ranks) {
  const SpinTimes own = SpinTimesFor(-1, kOwn);
  EXPECT_FALSE(own.yields);
  EXPECT_TRUE(own.caller > own.background);
  EXPECT_TRUE(own.background > microseconds(0));

  const SpinTimes shared = SpinTimesFor(-1, kShared);
  EXPECT_TRUE(shared.yields);
  EXPECT_TRUE(shared.background > microseconds(0));
}

TEST(SpinTimes, waits_on_sockets_always_give_the_core_away) {
  const SpinTimes sockets = SocketSpinTimesFor(-1, kOwn);

  EXPECT_TRUE(sockets.yields);
  EXPECT_TRUE(sockets.caller == SpinTimesFor(-1, kOwn).caller);
}

TEST(SpinTimes, callers_and_the_engine_have_budgets_of_their_own) {
  SpinBudgets budgets =
      SpinTimes{.background = microseconds(50), .caller = microseconds(200)}.Budgets();
  EXPECT_TRUE(budgets.current().Begin() == microseconds(50));

  budgets.SetWaiter(Waiter::kCaller);

  EXPECT_TRUE(budgets.current().Begin() == microseconds(200));
}

}  // namespace
}  // namespace rabit

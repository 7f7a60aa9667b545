#include "engine/lone_waits.h"

#include "testing/test.h"

namespace rabit {
namespace {

constexpr int64_t kAtOnce = 1000, kLate = LoneWaits::kSoonNs + 1;

// Submits and waits `times` times; handles from `first` on.  Returns how often a wait was expected.
int Repeat(LoneWaits& waits, uint64_t first, int times, int64_t after_ns = kAtOnce) {
  int expected = 0;
  for (int i = 0; i < times; ++i) {
    const Handle handle{first + static_cast<uint64_t>(i)};
    const bool is_expected = waits.Expects();
    expected += is_expected ? 1 : 0;
    waits.OnSubmit(handle, is_expected, 0);
    waits.OnWait(handle, after_ns);
  }
  return expected;
}

TEST(LoneWaits, are_expected_after_eight_in_a_row) {
  LoneWaits waits;
  EXPECT_EQ(Repeat(waits, 1, 8), 0);
  EXPECT_EQ(Repeat(waits, 100, 5), 5);
}

TEST(LoneWaits, that_come_late_or_for_one_of_several_do_not_count) {
  LoneWaits late;
  EXPECT_EQ(Repeat(late, 1, 50, kLate), 0);
  LoneWaits several;
  Repeat(several, 1, 8);
  several.OnSubmitSeveral(kAtOnce);
  EXPECT_FALSE(several.Expects());
  LoneWaits two;
  Repeat(two, 1, 8);
  two.OnSubmit(Handle{100}, false, 0);
  two.OnSubmit(Handle{101}, false, kAtOnce);
  two.OnWait(Handle{101}, 2 * kAtOnce);
  EXPECT_FALSE(two.Expects());
}

TEST(LoneWaits, nothing_is_expected_while_one_is_open) {
  LoneWaits waits;
  Repeat(waits, 1, 8);
  waits.OnSubmit(Handle{100}, true, 0);
  EXPECT_FALSE(waits.Expects());
}

TEST(LoneWaits, a_wrong_guess_makes_the_next_twice_as_dear_and_right_ones_forgive) {
  LoneWaits waits;
  Repeat(waits, 1, 8);
  waits.OnSubmit(Handle{100}, true, 0);
  waits.OnWait(Handle{100}, kLate);
  EXPECT_EQ(Repeat(waits, 200, 16), 0);
  EXPECT_EQ(Repeat(waits, 300, 64), 64);
  waits.OnSubmitSeveral(kAtOnce);
  EXPECT_EQ(Repeat(waits, 400, 8), 0);
  EXPECT_EQ(Repeat(waits, 500, 1), 1);
}

TEST(LoneWaits, a_guess_that_holds_nothing_up_costs_nothing) {
  LoneWaits waits;
  Repeat(waits, 1, 8);
  waits.OnSubmit(Handle{100}, true, 0);
  waits.OnSubmit(Handle{101}, false, kAtOnce);
  waits.OnWait(Handle{101}, kAtOnce + kLate);
  EXPECT_EQ(Repeat(waits, 200, 9), 1);

  waits.OnSubmit(Handle{300}, true, 0);
  waits.OnSubmit(Handle{301}, false, kLate);
  waits.OnWait(Handle{301}, kLate + kAtOnce);
  EXPECT_EQ(Repeat(waits, 400, 16), 1);
}

TEST(LoneWaits, a_caller_that_loses_its_core_often_is_still_guessed_right) {
  LoneWaits waits;
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_GE(Repeat(waits, 1000 * (i + 1), 50), 34);
    waits.OnSubmit(Handle{1}, waits.Expects(), 0);
    waits.OnWait(Handle{1}, kLate);
  }
}

}  // namespace
}  // namespace rabit

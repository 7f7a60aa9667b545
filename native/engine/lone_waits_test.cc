#include "engine/lone_waits.h"

#include "testing/test.h"

namespace rabit {
namespace {

constexpr int64_t kAtOnce = 1000, kLate = LoneWaits::kSoonNs + 1;

// Submits and waits `times` times; handles from `first` on.  Returns how often a wait was expected.
int Repeat(LoneWaits& waits, uint64_t first, int times, int64_t age_ns = kAtOnce) {
  int expected = 0;
  for (int i = 0; i < times; ++i) {
    const Handle handle{first + static_cast<uint64_t>(i)};
    const bool is_expected = waits.Expects();
    expected += is_expected ? 1 : 0;
    waits.OnSubmit(handle, is_expected);
    waits.OnWait(handle, age_ns);
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
  several.OnSubmitSeveral();
  EXPECT_FALSE(several.Expects());
  LoneWaits two;
  Repeat(two, 1, 8);
  two.OnSubmit(Handle{100}, false);
  two.OnSubmit(Handle{101}, false);
  two.OnWait(Handle{101}, kAtOnce);
  EXPECT_FALSE(two.Expects());
}

TEST(LoneWaits, nothing_is_expected_while_one_is_open) {
  LoneWaits waits;
  Repeat(waits, 1, 8);
  waits.OnSubmit(Handle{100}, true);
  EXPECT_FALSE(waits.Expects());
}

TEST(LoneWaits, a_wrong_guess_makes_the_next_four_times_as_dear_and_right_ones_forgive) {
  LoneWaits waits;
  Repeat(waits, 1, 8);
  waits.OnSubmit(Handle{100}, true);
  waits.OnWait(Handle{100}, kLate);
  EXPECT_EQ(Repeat(waits, 200, 32), 0);
  EXPECT_EQ(Repeat(waits, 300, 64), 64);
  waits.OnSubmitSeveral();
  EXPECT_EQ(Repeat(waits, 400, 16), 0);
  EXPECT_EQ(Repeat(waits, 500, 1), 1);
}

}  // namespace
}  // namespace rabit

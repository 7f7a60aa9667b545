#include "schedule/limit_choice.h"

#include "testing/test.h"

namespace rabit {
namespace {

constexpr int64_t kMillion = 1'000'000;

// A training loop: every round reduces `tensors` of `bytes` each, at `ns_per_byte`.
class Loop {
 public:
  Loop(int tensors, int64_t bytes, double ns_per_byte, bool has_order = true)
      : tensors_(tensors), bytes_(bytes), ns_per_byte_(ns_per_byte), has_order_(has_order) {}

  // What the rounds led to.
  std::optional<ScheduleLimits> Run(LimitChoice& choice, int rounds) {
    std::optional<ScheduleLimits> last;
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i < tensors_; ++i) {
        if (choice.OnAgreed(static_cast<size_t>(i), bytes_, has_order_ ? i : 3)) {
          if (const auto limits = choice.OnRound(totals_)) {
            last = limits;
            ++changes_;
          }
        }
        totals_.bytes += bytes_;
        totals_.communicating_ns +=
            static_cast<int64_t>(ns_per_byte_ * static_cast<double>(bytes_));
      }
    }
    return last;
  }
  int changes() const { return changes_; }
  void SetLatency(int64_t ns) { totals_.shortest_ns = ns; }
  void SetSpeed(double ns_per_byte) { ns_per_byte_ = ns_per_byte; }

 private:
  const int tensors_;
  const int64_t bytes_;
  double ns_per_byte_;
  const bool has_order_;
  LinkTotals totals_{0, 0, kMillion};
  int changes_ = 0;
};

TEST(LimitChoice, a_slower_link_gets_smaller_partitions) {
  int64_t partition_bytes[2];
  for (int i = 0; i < 2; ++i) {
    LimitChoice choice{ScheduleLimits{}};
    const auto limits = Loop(40, kMillion, i == 0 ? 12.5 : 125).Run(choice, 4);
    ASSERT_TRUE(limits.has_value());
    EXPECT_EQ(choice.round_bytes(), 40 * kMillion);
    partition_bytes[i] = limits->partition_bytes;
    EXPECT_EQ(limits->fusion_bytes, limits->partition_bytes);
    EXPECT_GT(limits->credit_bytes, limits->partition_bytes);
  }
  // The square root of ten, but for the rounding to pages.
  EXPECT_GT(partition_bytes[0], 3 * partition_bytes[1]);
  EXPECT_LT(partition_bytes[0], 4 * partition_bytes[1]);
}

TEST(LimitChoice, a_longer_latency_gets_larger_partitions) {
  LimitChoice near{ScheduleLimits{}}, far{ScheduleLimits{}};
  const auto small = Loop(40, kMillion, 12.5).Run(near, 4);
  Loop loop(40, kMillion, 12.5);
  loop.SetLatency(16 * kMillion);
  const auto large = loop.Run(far, 4);
  ASSERT_TRUE(small.has_value() && large.has_value());
  EXPECT_GT(large->partition_bytes, small->partition_bytes);
  EXPECT_LT(large->partition_bytes, 2 * small->partition_bytes);  // no more than can be believed
}

TEST(LimitChoice, it_settles) {
  LimitChoice choice{ScheduleLimits{}};
  Loop loop(40, kMillion, 12.5);
  (void)loop.Run(choice, 100);
  EXPECT_EQ(loop.changes(), 1);
}

TEST(LimitChoice, it_follows_a_link_that_changes) {
  LimitChoice choice{ScheduleLimits{}};
  Loop loop(40, kMillion, 12.5);
  const auto before = loop.Run(choice, 5);
  loop.SetSpeed(125);
  const auto after = loop.Run(choice, 20);
  ASSERT_TRUE(before.has_value() && after.has_value());
  EXPECT_LT(2 * after->partition_bytes, before->partition_bytes);
  EXPECT_LT(loop.changes(), 5);
}

TEST(LimitChoice, what_happens_during_a_pause_does_not_count) {
  LimitChoice choice{ScheduleLimits{}};
  Loop loop(40, kMillion, 12.5);
  const auto before = loop.Run(choice, 5);
  ASSERT_TRUE(before.has_value());
  choice.Pause();
  loop.SetSpeed(125);
  EXPECT_FALSE(loop.Run(choice, 20).has_value());
  loop.SetSpeed(12.5);

  EXPECT_EQ(choice.Resume().partition_bytes, before->partition_bytes);
  EXPECT_FALSE(loop.Run(choice, 5).has_value());
  loop.SetSpeed(125);
  EXPECT_TRUE(loop.Run(choice, 20).has_value());
}

TEST(LimitChoice, without_an_order_nothing_is_held_back) {
  LimitChoice choice{ScheduleLimits{}};
  EXPECT_FALSE(Loop(40, kMillion, 12.5, false).Run(choice, 10).has_value());
}

TEST(LimitChoice, a_round_that_is_quickly_exchanged_stays_as_it_is) {
  LimitChoice choice{ScheduleLimits{}};
  EXPECT_FALSE(Loop(40, 10'000, 0.3).Run(choice, 10).has_value());
}

TEST(LimitChoice, names_that_never_repeat_are_forgotten) {
  LimitChoice choice{ScheduleLimits{}};
  int rounds = 0;
  for (size_t i = 0; i < 200'000; ++i) rounds += choice.OnAgreed(i, 4, 0) ? 1 : 0;
  EXPECT_EQ(rounds, 3);
}

}  // namespace
}  // namespace rabit

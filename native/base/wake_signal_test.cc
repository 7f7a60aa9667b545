#include "base/wake_signal.h"

#include <thread>
#include <vector>

#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::Soon;

TEST(WakeSignal, a_condition_that_holds_needs_no_notify) {
  WakeSignal signal;
  EXPECT_TRUE(signal.Wait([] { return true; }, Deadline{}));
}

TEST(WakeSignal, a_wait_ends_at_its_deadline) {
  for (int spin_us : {0, 100}) {
    WakeSignal signal{std::chrono::microseconds(spin_us)};
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(signal.Wait([] { return false; }, After(std::chrono::milliseconds(20))));
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
  }
}

// Two threads hand a number to and fro: a lost wake-up ends the test by its deadline.
TEST(WakeSignal, no_wake_up_is_lost) {
  for (int spin_us : {0, 50}) {
    WakeSignal signal{std::chrono::microseconds(spin_us)};
    std::atomic<int> turn{0};
    constexpr int kRounds = 5'000;
    auto play = [&](int parity) {
      for (int i = parity; i < kRounds; i += 2) {
        if (!signal.Wait([&] { return turn.load() == i; }, Soon())) {
          ADD_FAILURE() << "lost at " << i;
          return;
        }
        turn.store(i + 1);
        signal.Notify();
      }
    };
    std::thread other(play, 1);
    play(0);
    other.join();
    EXPECT_EQ(turn.load(), kRounds);
  }
}

TEST(WakeSignal, one_notify_wakes_every_waiter) {
  WakeSignal signal;
  std::atomic<bool> is_open{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_TRUE(signal.Wait([&] { return is_open.load(); }, Soon())); });
  }
  is_open.store(true);
  signal.Notify();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace rabit

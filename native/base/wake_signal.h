// WakeSignal: an event count.  Threads wait for a condition that other threads make true.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/bytes.h"
#include "base/spin_wait.h"

namespace rabit {

// Whoever changes what a condition reads calls Notify afterwards; no lock is needed around either,
// and Notify costs one atomic operation when nobody sleeps.  A wait first spins for a time that
// adapts to how long waits have been, then sleeps in the kernel.  Thread-safe; must outlive every
// call, Notify's included.
class WakeSignal {
 public:
  // `spin_max` zero: sleep at once, which is right where threads outnumber cores.
  explicit WakeSignal(std::chrono::microseconds spin_max = {}) : spin_(spin_max) {}
  WakeSignal(const WakeSignal&) = delete;
  WakeSignal& operator=(const WakeSignal&) = delete;

  void Notify() {
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) WakeSleepers();
  }

  // Waits until `is_done()` or the deadline; returns what `is_done()` said last.  `is_done` may be
  // called often and must be cheap.
  template <class Condition>
  bool Wait(Condition is_done, Deadline deadline) {
    if (is_done()) return true;
    if (Spin(is_done, deadline)) return true;
    for (;;) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t seen = epoch_.load(std::memory_order_seq_cst);
      // Checked after the epoch is read: a Notify after this makes Sleep return at once.
      bool is_over = is_done();
      const bool has_result = is_over;
      if (!is_over) is_over = !Sleep(seen, deadline);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      if (is_over) return has_result || is_done();
    }
  }

 private:
  template <class Condition>
  bool Spin(Condition& is_done, Deadline deadline) {
    SpinWait spin(spin_, kLooksPerClock);
    while (!is_done()) {
      if (spin.IsClockDue()) {
        const Deadline now = std::chrono::steady_clock::now();
        if (now >= deadline || !spin.MaySpin(now)) return false;
      }
      spin.Rest();
    }
    spin.OnFound();
    return true;
  }

  static constexpr uint32_t kLooksPerClock = 16;

  void WakeSleepers();
  // False at the deadline.
  bool Sleep(uint32_t seen_epoch, Deadline deadline);

  SpinBudget spin_;
  std::atomic<uint32_t> epoch_{0};
  std::atomic<int32_t> sleepers_{0};
};

}  // namespace rabit

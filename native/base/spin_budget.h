// SpinBudget: how long a wait should spin before it sleeps.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace rabit {

// Spinning pays when waits are shorter than it: after a short wait the budget is full again, after
// a long one it halves, down to a sixteenth.  Thread-safe; an approximate answer is good enough.
class SpinBudget {
 public:
  // Zero: never spin, which is right where threads outnumber cores.
  explicit SpinBudget(std::chrono::nanoseconds most) : most_ns_(most.count()) {}

  std::chrono::nanoseconds Current() const {
    return std::chrono::nanoseconds(current_ns_.load(std::memory_order_relaxed));
  }
  void Learn(std::chrono::nanoseconds waited) {
    const int64_t current = current_ns_.load(std::memory_order_relaxed);
    const int64_t next =
        waited.count() <= most_ns_ ? most_ns_ : std::max(current / 2, most_ns_ / 16);
    if (next != current) current_ns_.store(next, std::memory_order_relaxed);
  }

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

 private:
  const int64_t most_ns_;
  std::atomic<int64_t> current_ns_{most_ns_};
};

}  // namespace rabit

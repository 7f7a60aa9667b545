// SpinBudget: how long a wait should spin before it sleeps; SpinBudgets: who waits decides.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rabit {

// A spin that ends in sleep is worse than wasted: where threads share a core, it holds up the very
// thread that is waited for.  So each such wait halves the budget, down to none, and a spin that
// paid off restores it; without a budget, one wait in 32 tries again.  What counts is only whether
// the spin paid off, not how long the wait took, because a spin in the way makes waits look short.
// Thread-safe; an approximate answer is good enough.
class SpinBudget {
 public:
  // Zero: never spin.
  // `yields`: between two looks another thread may have the core, for waits among threads that
  // outnumber the cores and mostly wait for each other.
  explicit SpinBudget(std::chrono::nanoseconds most, bool yields = false)
      : most_ns_(most.count()), yields_(yields) {}

  // The budget of the wait that begins.
  std::chrono::nanoseconds Begin() {
    const int64_t current = current_ns_.load(std::memory_order_relaxed);
    if (current > 0 || most_ns_ == 0) return std::chrono::nanoseconds(current);
    const uint32_t waits = waits_.load(std::memory_order_relaxed) + 1;
    waits_.store(waits, std::memory_order_relaxed);
    return std::chrono::nanoseconds(waits % kProbeEvery == 0 ? most_ns_ : 0);
  }
  void PaidOff() {
    if (current_ns_.load(std::memory_order_relaxed) != most_ns_) {
      current_ns_.store(most_ns_, std::memory_order_relaxed);
    }
  }
  void EndedInSleep() {
    const int64_t current = current_ns_.load(std::memory_order_relaxed);
    if (current == 0) return;
    const int64_t half = current / 2;
    current_ns_.store(half < most_ns_ / 16 ? 0 : half, std::memory_order_relaxed);
  }

  bool yields() const { return yields_; }
  // `gives_way`: whoever is waited for may need this core.
  static void Rest(bool gives_way) {
    if (gives_way) {
      ::sched_yield();
    } else {
      Pause();
    }
  }
  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

 private:
  static constexpr uint32_t kProbeEvery = 32;

  const int64_t most_ns_;
  const bool yields_;
  std::atomic<int64_t> current_ns_{most_ns_};
  std::atomic<uint32_t> waits_{0};
};

enum class Waiter : int32_t {
  kBackground,  // a thread of the engine: the caller of its rank may want the core
  kCaller,      // the caller itself, whose rank has nothing else to do meanwhile
};

// One place in which both kinds wait, one at a time.  Each has a budget of its own, so that idle
// waits of the engine do not take that of callers, who need a longer one: on a virtual machine a
// rank that sleeps takes some 45 us to wake, and where that is all that its peers spin, one sleep
// makes them sleep, and so on.  Thread-safe.
class SpinBudgets {
 public:
  SpinBudgets(std::chrono::nanoseconds background, std::chrono::nanoseconds caller,
              bool yields = false)
      : background_(background, yields), caller_(caller, yields) {}

  void SetWaiter(Waiter waiter) { waiter_.store(waiter, std::memory_order_relaxed); }
  // Of the wait that begins; the same for all of it.
  SpinBudget& current() {
    return waiter_.load(std::memory_order_relaxed) == Waiter::kCaller ? caller_ : background_;
  }

 private:
  SpinBudget background_;
  SpinBudget caller_;
  std::atomic<Waiter> waiter_{Waiter::kBackground};
};

}  // namespace rabit

// AskUntil: waits for what tells nobody when it is over, as work on a device, and is asked instead.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/bytes.h"
#include "base/result.h"

namespace rabit {

// How long to leave it alone between two questions.  Copies of small tensors take some
// microseconds, those of a partition some hundreds, and kernels of a backward pass more.
class AskPause {
 public:
  std::chrono::microseconds Next() {
    const std::chrono::microseconds pause = next_;
    next_ = std::min(next_ * 2, kLongest);
    return pause;
  }
  void Reset() { next_ = kShortest; }

 private:
  static constexpr std::chrono::microseconds kShortest{5};
  static constexpr std::chrono::microseconds kLongest{100};
  std::chrono::microseconds next_ = kShortest;
};

// Blocks until `ask()`, a Result<bool>, is true or an error, or the deadline has passed: then it
// returns false.  It asks at least once.
template <class Ask>
Result<bool> AskUntil(Deadline deadline, Ask ask) {
  constexpr auto kYieldFor = std::chrono::microseconds(20);
  const Deadline began = std::chrono::steady_clock::now();
  AskPause pause;
  for (;;) {
    RABIT_ASSIGN_OR_RETURN(const bool is_over, ask());
    if (is_over) return true;
    const Deadline now = std::chrono::steady_clock::now();
    if (now >= deadline) return false;
    if (now - began < kYieldFor) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause.Next());
    }
  }
}

}  // namespace rabit

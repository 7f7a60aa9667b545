// NowNs and UnionClock: how the engine measures where time goes.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/mutex.h"

namespace rabit {

inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// How long at least one of several overlapping activities ran.  Thread-safe.
class UnionClock {
 public:
  void Enter() {
    MutexLock lock(mutex_);
    if (active_++ == 0) started_ns_ = NowNs();
  }
  void Leave() {
    MutexLock lock(mutex_);
    if (--active_ == 0) total_ns_ += NowNs() - started_ns_;
  }
  int64_t TotalNs() const {
    MutexLock lock(mutex_);
    return total_ns_ + (active_ > 0 ? NowNs() - started_ns_ : 0);
  }

 private:
  mutable Mutex mutex_;
  int active_ RABIT_GUARDED_BY(mutex_) = 0;
  int64_t started_ns_ RABIT_GUARDED_BY(mutex_) = 0;
  int64_t total_ns_ RABIT_GUARDED_BY(mutex_) = 0;
};

}  // namespace rabit

// OverlapClock: how the engine measures where time goes.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"

namespace rabit {

// How long the lanes communicated, how long callers waited, and how long both at once: what
// communicates while nobody waits is hidden behind compute.  Thread-safe.
class OverlapClock {
 public:
  enum Activity { kCommunicating, kWaiting };
  struct Totals {
    int64_t communicating_ns = 0;  // at least one lane
    int64_t waiting_ns = 0;        // at least one caller
    int64_t both_ns = 0;
  };

  void Enter(Activity activity) { Change(activity, 1); }
  void Leave(Activity activity) { Change(activity, -1); }
  Totals totals() const {
    MutexLock lock(mutex_);
    Totals now = totals_;
    Add(now, NowNs() - changed_ns_);
    return now;
  }

 private:
  void Change(Activity activity, int by) {
    MutexLock lock(mutex_);
    const int64_t now_ns = NowNs();
    Add(totals_, now_ns - changed_ns_);
    changed_ns_ = now_ns;
    active_[activity] += by;
  }
  void Add(Totals& totals, int64_t elapsed_ns) const RABIT_REQUIRES(mutex_) {
    if (active_[kCommunicating] > 0) totals.communicating_ns += elapsed_ns;
    if (active_[kWaiting] > 0) totals.waiting_ns += elapsed_ns;
    if (active_[kCommunicating] > 0 && active_[kWaiting] > 0) totals.both_ns += elapsed_ns;
  }

  mutable Mutex mutex_;
  int active_[2] RABIT_GUARDED_BY(mutex_) = {0, 0};
  int64_t changed_ns_ RABIT_GUARDED_BY(mutex_) = NowNs();
  Totals totals_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

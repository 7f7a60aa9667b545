// DoneCounter: how many buckets are finished, counted in the order of their ids.
#pragma once

#include <cstdint>
#include <set>

#include "base/mutex.h"

namespace rabit {

// Lanes finish out of order; the credit that ranks compare needs an order.  Thread-safe.
class DoneCounter {
 public:
  void MarkDone(uint64_t bucket) {
    MutexLock lock(mutex_);
    early_.insert(bucket);
    while (!early_.empty() && *early_.begin() == count_) {
      early_.erase(early_.begin());
      ++count_;
    }
  }
  uint64_t count() const {
    MutexLock lock(mutex_);
    return count_;
  }

 private:
  mutable Mutex mutex_;
  uint64_t count_ RABIT_GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> early_ RABIT_GUARDED_BY(mutex_);  // bounded by the lanes' queues
};

}  // namespace rabit

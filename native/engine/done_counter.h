// DoneCounter: how many buckets are finished, counted in the order of their ids.
#pragma once

#include <array>
#include <cstdint>
#include <set>

#include "base/bucket_counts.h"
#include "base/mutex.h"

namespace rabit {

// Lanes finish out of order; the credit that ranks compare needs an order.  Thread-safe.
class DoneCounter {
 public:
  void MarkDone(int32_t lane_class, uint64_t bucket) {
    MutexLock lock(mutex_);
    std::set<uint64_t>& early = early_[static_cast<size_t>(lane_class)];
    uint64_t& count = counts_[lane_class];
    early.insert(bucket);
    while (!early.empty() && *early.begin() == count) {
      early.erase(early.begin());
      ++count;
    }
  }
  BucketCounts counts() const {
    MutexLock lock(mutex_);
    return counts_;
  }

 private:
  mutable Mutex mutex_;
  BucketCounts counts_ RABIT_GUARDED_BY(mutex_);
  // Bounded by the lanes' queues.
  std::array<std::set<uint64_t>, kLaneClassesMax> early_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

// Meeting: threads of a test that wait for each other, and not for ever.
#pragma once

#include <cstdint>

#include "base/mutex.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit::testing {

// A thread whose test has failed may have left early.  Thread-safe.
class Meeting {
 public:
  explicit Meeting(int count) : count_(count) {}

  // Returns when all have come; they may meet again.  The test has failed if somebody does not.
  void Await(Deadline deadline = Soon()) {
    MutexLock lock(mutex_);
    const int64_t all = (come_++ / count_ + 1) * count_;
    changed_.NotifyAll();
    while (come_ < all) {
      if (changed_.WaitUntil(mutex_, deadline) || come_ >= all) continue;
      ADD_FAILURE() << count_ - (all - come_) << "of" << count_ << "threads have come to a meeting";
      return;
    }
  }

 private:
  const int64_t count_;
  Mutex mutex_;
  CondVar changed_;
  int64_t come_ RABIT_GUARDED_BY(mutex_) = 0;
};

}  // namespace rabit::testing

// LoneWaits: guesses whether the caller that submits a request will wait for it at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/mutex.h"
#include "engine/request.h"

namespace rabit {

// A caller that submits one request and then waits for it, again and again, is better off if
// nobody is woken in between and it does the engine's work itself.  A wrong guess holds a request
// up until the engine thread looks by itself, so after one the next guess takes twice as many waits
// in a row, until many were right; a caller that lost its core in between looks the same, and on a
// busy machine that is often.  Where the next request follows soon nothing was held up, and a guess
// costs nothing.  Thread-safe.
class LoneWaits {
 public:
  // Longer after the submission, the caller has done something else meanwhile.
  static constexpr int64_t kSoonNs = 50'000;

  bool Expects() const {
    MutexLock lock(mutex_);
    return last_ == Handle{}.value && row_ >= needed_;
  }

  // `was_guess`: nobody was woken.  `now_ns`: the time at the end of the submission.
  void OnSubmit(Handle handle, bool was_guess, int64_t now_ns) {
    MutexLock lock(mutex_);
    // The request before has not been waited for.
    if (last_ != Handle{}.value) Break(now_ns - last_ns_ > kSoonNs);
    last_ = handle.value;
    last_ns_ = now_ns;
    was_guess_ = was_guess;
  }

  // Several requests at once: their caller has more to do than to wait for one.
  void OnSubmitSeveral(int64_t now_ns) {
    MutexLock lock(mutex_);
    Break(last_ != Handle{}.value && now_ns - last_ns_ > kSoonNs);
  }

  void OnWait(Handle handle, int64_t now_ns) {
    MutexLock lock(mutex_);
    if (handle.value != last_) return;
    if (now_ns - last_ns_ > kSoonNs) return Break(true);
    last_ = Handle{}.value;
    row_ = std::min(row_ + 1, kNeededAfterMistake);
    if (!was_guess_) return;
    was_guess_ = false;
    if (++right_ >= kForgiven) needed_ = kNeeded;
  }

 private:
  static constexpr int32_t kNeeded = 8;
  // So many right guesses save about what the dearest wrong one costs (some 65 us each, and 1 ms).
  static constexpr int32_t kNeededAfterMistake = 16;
  static constexpr int32_t kForgiven = 64;

  void Break(bool held_up) RABIT_REQUIRES(mutex_) {
    if (was_guess_ && held_up) needed_ = kNeededAfterMistake;
    was_guess_ = false;
    last_ = Handle{}.value;
    row_ = right_ = 0;
  }

  mutable Mutex mutex_;
  uint64_t last_ RABIT_GUARDED_BY(mutex_) = Handle{}.value;  // submitted and not waited for
  int64_t last_ns_ RABIT_GUARDED_BY(mutex_) = 0;             // when
  bool was_guess_ RABIT_GUARDED_BY(mutex_) = false;
  int32_t row_ RABIT_GUARDED_BY(mutex_) = 0;
  int32_t right_ RABIT_GUARDED_BY(mutex_) = 0;  // guesses in a row
  int32_t needed_ RABIT_GUARDED_BY(mutex_) = kNeeded;
};

}  // namespace rabit

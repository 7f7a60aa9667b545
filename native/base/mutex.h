// Mutex, MutexLock and CondVar: the standard ones with Clang's thread-safety annotations, so that
// -Wthread-safety proves that guarded members are only touched under their lock.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/bytes.h"

#if defined(__clang__)
#define RABIT_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define RABIT_THREAD_ANNOTATION(x)
#endif

#define RABIT_GUARDED_BY(mutex) RABIT_THREAD_ANNOTATION(guarded_by(mutex))
#define RABIT_REQUIRES(mutex) RABIT_THREAD_ANNOTATION(requires_capability(mutex))
// The function is called with the mutex held, and returns without it.
#define RABIT_RELEASES(mutex) RABIT_THREAD_ANNOTATION(release_capability(mutex))
#define RABIT_EXCLUDES(mutex) RABIT_THREAD_ANNOTATION(locks_excluded(mutex))

namespace rabit {

class RABIT_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void Lock() RABIT_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  bool TryLock() RABIT_THREAD_ANNOTATION(try_acquire_capability(true)) { return mutex_.try_lock(); }
  void Unlock() RABIT_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class RABIT_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) RABIT_THREAD_ANNOTATION(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() RABIT_THREAD_ANNOTATION(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  void NotifyAll() { condition_.notify_all(); }
  // Sleeps until notified or the deadline; may return early, so callers loop.  False at the
  // deadline.
  bool WaitUntil(Mutex& mutex, Deadline deadline) RABIT_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool is_in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return is_in_time;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace rabit

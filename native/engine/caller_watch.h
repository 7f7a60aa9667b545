// CallerWatch: whether every thread that submits something waits for what it has submitted.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "engine/request.h"

namespace rabit {

// A program hangs for good if no thread of it that submits anything does anything else than wait,
// without an end, for what other ranks have not submitted.  A thread counts from its first request
// on, and for ever: one that has ended waits for nothing, and so no program is said to hang that
// has had such a thread.  Thread-safe; costs a caller some nanoseconds.
class CallerWatch {
 public:
  CallerWatch();
  CallerWatch(const CallerWatch&) = delete;

  // The calling thread submits.
  void OnSubmit();
  // It waits for `handle` for as long as that takes.
  void OnWait(Handle handle);
  // It does not any more.  `comes_back`: it has looked up from its wait, and goes on with it.
  void OnWaited(bool comes_back);

  uint64_t submissions() const { return submissions_.load(std::memory_order_relaxed); }

  // Whether there is such a thread, and all of them wait for handles of which `is_open` says yes.
  template <class IsOpen>
  bool AllWait(int64_t now_ns, const IsOpen& is_open) const {
    MutexLock lock(mutex_);
    for (const auto& [thread, caller] : callers_) {
      const uint64_t handle = caller->waits_for.load(std::memory_order_acquire);
      const int64_t away_ns = caller->away_since_ns.load(std::memory_order_relaxed);
      const bool is_back = away_ns == 0 || now_ns - away_ns < kAwayMaxNs;
      if (handle == 0 || !is_back || !is_open(Handle{handle})) return false;
    }
    return !callers_.empty();
  }

 private:
  // Callers look up ten times a second, to see signals; one that stays away does something else.
  static constexpr int64_t kAwayMaxNs = 1'000'000'000;

  struct Caller {
    std::atomic<uint64_t> waits_for{0};  // a handle
    std::atomic<int64_t> away_since_ns{0};
  };
  Caller* Mine(bool is_new);  // null: this thread has not submitted anything

  const uint64_t number_;  // among all of the process, so that threads know whose caller they keep
  std::atomic<uint64_t> submissions_{0};
  mutable Mutex mutex_;
  std::map<std::thread::id, std::unique_ptr<Caller>> callers_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

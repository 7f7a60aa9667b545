// CorePlace: on which core another thread, mostly of another process, was last seen.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace rabit {

// The core that this thread runs on; 0: the system does not say.
inline uint32_t ThisCore() {
  const int core = ::sched_getcpu();
  return core < 0 ? 0 : static_cast<uint32_t>(core) + 1;
}

// One thread tells where it waits, and those that wait for it look.  What they see may be old: a
// thread that works has told nobody that it was moved.  Lies in zeroed shared memory.
class CorePlace {
 public:
  // A place that stays the same is not written again: readers keep the line in their caches.
  void Tell(uint32_t core) {
    if (core_.load(std::memory_order_relaxed) != core) {
      core_.store(core, std::memory_order_relaxed);
    }
  }
  bool Is(uint32_t core) const {
    return core != 0 && core_.load(std::memory_order_relaxed) == core;
  }

 private:
  std::atomic<uint32_t> core_;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace rabit

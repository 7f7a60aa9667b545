// MemoryStore: a store for ranks that are threads of one process.
#pragma once

#include "base/mutex.h"
#include "rendezvous/board.h"
#include "rendezvous/store.h"

namespace rabit::testing {

// Thread-safe.
class MemoryStore final : public Store {
 public:
  Status Set(std::string_view key, std::string_view value) override {
    MutexLock lock(mutex_);
    Status status = board_.Set(key, value);
    changed_.NotifyAll();
    return status;
  }

  Result<Versioned> Watch(std::string_view key, uint64_t seen, Deadline deadline) override {
    RABIT_RETURN_IF_ERROR(CheckStoreKey(key));
    MutexLock lock(mutex_);
    for (;;) {
      const Versioned* const held = board_.Find(key);
      if (held != nullptr && held->version > seen) return *held;
      if (std::chrono::steady_clock::now() >= deadline) return NotSetInTime(key, seen);
      changed_.WaitUntil(mutex_, deadline);
    }
  }

  Result<Swap> CompareAndSet(std::string_view key, uint64_t version,
                             std::string_view value) override {
    MutexLock lock(mutex_);
    Result<Swap> swap = board_.CompareAndSet(key, version, value);
    changed_.NotifyAll();
    return swap;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  Board board_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit::testing

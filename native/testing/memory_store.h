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

  Result<std::string> Get(std::string_view key, Deadline deadline) override {
    RABIT_RETURN_IF_ERROR(CheckStoreKey(key));
    MutexLock lock(mutex_);
    for (;;) {
      if (const std::string* value = board_.Find(key); value != nullptr) return *value;
      if (std::chrono::steady_clock::now() >= deadline) {
        return TimedOut("store key '" + std::string(key) +
                        "' was not set before the deadline; has every rank started?");
      }
      changed_.WaitUntil(mutex_, deadline);
    }
  }

  Result<std::string> SetOnce(std::string_view key, std::string_view value) override {
    MutexLock lock(mutex_);
    Result<std::string> held = board_.SetOnce(key, value);
    changed_.NotifyAll();
    return held;
  }

  Result<int64_t> Add(std::string_view key, int64_t amount) override {
    MutexLock lock(mutex_);
    Result<int64_t> value = board_.Add(key, amount);
    changed_.NotifyAll();
    return value;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  Board board_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit::testing

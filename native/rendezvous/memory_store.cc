#include "rendezvous/memory_store.h"

namespace rabit {

Status MemoryStore::Set(std::string_view key, std::string_view value) {
  MutexLock lock(mutex_);
  Status status = board_.Set(key, value);
  changed_.NotifyAll();
  return status;
}

Result<std::string> MemoryStore::Get(std::string_view key, Deadline deadline) {
  RABIT_RETURN_IF_ERROR(CheckStoreKey(key));
  MutexLock lock(mutex_);
  for (;;) {
    if (const std::string* value = board_.Find(key); value != nullptr) return *value;
    if (std::chrono::steady_clock::now() >= deadline) {
      return TimedOut("store key '" + std::string(key) + "' was not set before the deadline; has " +
                      "every rank started?");
    }
    changed_.WaitUntil(mutex_, deadline);
  }
}

Result<int64_t> MemoryStore::Add(std::string_view key, int64_t amount) {
  MutexLock lock(mutex_);
  Result<int64_t> value = board_.Add(key, amount);
  changed_.NotifyAll();
  return value;
}

}  // namespace rabit

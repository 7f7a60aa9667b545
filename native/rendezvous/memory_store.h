// MemoryStore: a store for ranks that are threads of one process.
#pragma once

#include "base/mutex.h"
#include "rendezvous/board.h"
#include "rendezvous/store.h"

namespace rabit {

// Thread-safe.
class MemoryStore final : public Store {
 public:
  Status Set(std::string_view key, std::string_view value) override;
  Result<std::string> Get(std::string_view key, Deadline deadline) override;
  Result<int64_t> Add(std::string_view key, int64_t amount) override;

 private:
  Mutex mutex_;
  CondVar changed_;
  Board board_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

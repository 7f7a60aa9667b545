// StartWatch: which rank of a job has failed while the ranks start, and why.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "rendezvous/store.h"
#include "rendezvous/tcp_store.h"

namespace rabit {

// Every rank leaves a will with the store: its connection there ends with its process.  A rank that
// fails says so first, under the same key, and whoever comes second takes over the first verdict,
// so that all ranks name the same culprit.  As a Store it is the one beneath, but a Watch that waits
// ends when a rank has failed.  Thread-safe.
class StartWatch final : public Store {
 public:
  // `store` must outlive it.
  // `who`: this process, for messages; empty: "rank" and its number.
  StartWatch(TcpStore& store, int64_t epoch, int rank, std::string who = {});
  // A rank that ends in order leaves nobody in doubt.
  ~StartWatch() override { store_.TakeBackWill(); }

  Status Join(Deadline deadline);
  // Of the rank that has failed, or OK.  Asks the store at most every 100 ms.
  Status Look();
  // This rank fails for `why`.  What all ranks fail for: that, or what came before it.
  Status Fail(const Status& why);

  Status Set(std::string_view key, std::string_view value) override {
    return store_.Set(key, value);
  }
  Result<Versioned> Watch(std::string_view key, uint64_t seen, Deadline deadline) override;
  Result<Swap> CompareAndSet(std::string_view key, uint64_t version,
                             std::string_view value) override {
    return store_.CompareAndSet(key, version, value);
  }

 private:
  Status Read(Deadline deadline);

  TcpStore& store_;
  const int rank_;
  const std::string who_;
  const std::string key_;
  Mutex mutex_;
  Deadline next_look_ RABIT_GUARDED_BY(mutex_){};
};

}  // namespace rabit

// TcpStore: the client of a StoreServer.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "rendezvous/listener.h"
#include "rendezvous/store.h"
#include "rendezvous/store_wire.h"

namespace rabit {

// Thread-safe: calls that overlap use connections of their own, which are kept for later calls, so
// that a Watch that waits holds up nobody.
class TcpStore final : public Store {
 public:
  // Connects and asks once, so that a wrong address or secret is told here.  `rank`: of this process, for
  // messages; -1 if it has none.
  static Result<std::unique_ptr<TcpStore>> Connect(std::string_view address, const Secret& secret,
                                                   int32_t rank, Deadline deadline);

  // Set and CompareAndSet give the server 30 s to answer; a Watch gives it 2 s beyond its deadline.
  Status Set(std::string_view key, std::string_view value) override;
  Result<Versioned> Watch(std::string_view key, uint64_t seen, Deadline deadline) override;
  Result<Swap> CompareAndSet(std::string_view key, uint64_t version,
                             std::string_view value) override;

  // Like Watch; kAborted as soon as the key `unless` is set.
  Result<Versioned> WatchUnless(std::string_view unless, std::string_view key, uint64_t seen,
                                Deadline deadline);

  // Once this process has ended, the server does SetOnce(key, value).  One will at a time.
  Status LeaveWill(std::string_view key, std::string_view value, Deadline deadline);
  // Never waits.
  void TakeBackWill();

 private:
  TcpStore(std::string_view address, const Secret& secret, int32_t rank)
      : address_(address), secret_(secret), rank_(rank) {}

  // A connection on which the server has answered.
  Result<UniqueFd> DialServer(Deadline deadline);
  Result<UniqueFd> TakeConnection(Deadline deadline);
  void KeepConnection(UniqueFd fd);
  Result<StoreResponse> Put(const StoreRequest& request);
  // A refusal by the server is an error here.
  Result<StoreResponse> Ask(const StoreRequest& request, Deadline deadline);

  const std::string address_;
  const Secret secret_;
  const int32_t rank_;
  UniqueFd will_;  // the connection with whose end the will is done
  std::string will_key_;
  Mutex mutex_;
  std::vector<UniqueFd> idle_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

// ConnectionPool: what of a process outlives its engines.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "membership/kept_sockets.h"
#include "rendezvous/listener.h"
#include "rendezvous/tcp_store.h"

namespace rabit {

// A process has one number for ever, by which the others know it, and a rank in each engine.  The
// store's client, the port and the connections stay when an engine ends; the next one, of other
// members, takes those over that lead to members of its own.  Memory that ranks of a host share is
// new for each engine: what a process that was left out still writes, it writes where nobody looks.
// Thread-safe.
class ConnectionPool {
 public:
  ConnectionPool(const Secret& secret, int member) : secret_(secret), member_(member) {}

  // Connects to the store at this address, unless that is done; empty: any will do.  No engine may
  // run over another one.
  Status Meet(std::string_view store, Deadline deadline);
  // Opens the port, unless it is open.
  Status Listen(std::string_view address, uint64_t epoch);

  // An engine with these members begins.  Everything of an earlier epoch is refused from now on,
  // and connections with others close.  kInvalidArgument: another engine runs, or has run in this
  // epoch or a later one.
  Status Begin(uint64_t epoch, const std::vector<int>& members);
  // It has ended: its connections come back, if it has them still.
  void End();

  int member() const { return member_; }
  const Secret& secret() const { return secret_; }
  TcpStore& store() { return *store_; }
  Listener& listener() { return *listener_; }
  KeptSockets& kept() { return kept_; }
  // What members have told about themselves, by key.
  struct Facts {
    Mutex mutex;
    std::map<std::string, std::string, std::less<>> values RABIT_GUARDED_BY(mutex);
  };
  Facts& facts() { return facts_; }

 private:
  const Secret secret_;
  const int member_;
  std::string store_address_;
  std::unique_ptr<TcpStore> store_;
  std::unique_ptr<Listener> listener_;
  KeptSockets kept_;
  Facts facts_;
  Mutex mutex_;
  bool is_used_ RABIT_GUARDED_BY(mutex_) = false;
  uint64_t epoch_ RABIT_GUARDED_BY(mutex_) = 0;
};

// An engine's turn with a pool.
class PoolTurn {
 public:
  explicit PoolTurn(ConnectionPool& pool) : pool_(pool) {}
  ~PoolTurn() { pool_.End(); }
  PoolTurn(const PoolTurn&) = delete;

 private:
  ConnectionPool& pool_;
};

// A store that asks only once for what a member tells about itself, which never changes.
class MemberBook final : public Store {
 public:
  // Both must outlive it.
  MemberBook(Store& beneath, ConnectionPool::Facts& facts) : beneath_(beneath), facts_(facts) {}

  Status Set(std::string_view key, std::string_view value) override {
    return beneath_.Set(key, value);
  }
  Result<Versioned> Watch(std::string_view key, uint64_t seen, Deadline deadline) override;
  // Whether a Watch would ask nobody.
  bool Knows(std::string_view key) const;
  // What a member tells about itself, heard in another way.
  void Learn(const std::string& key, const std::string& value);
  Result<Swap> CompareAndSet(std::string_view key, uint64_t version,
                             std::string_view value) override {
    return beneath_.CompareAndSet(key, version, value);
  }

 private:
  Store& beneath_;
  ConnectionPool::Facts& facts_;
};

}  // namespace rabit

#include "membership/pool.h"

#include "transport/connect.h"

namespace rabit {

Status ConnectionPool::Meet(std::string_view store, Deadline deadline) {
  if (store_ != nullptr && (store.empty() || store_address_ == store)) return {};
  RABIT_ASSIGN_OR_RETURN(store_, TcpStore::Connect(store, secret_, member_, deadline));
  store_address_ = store;
  return {};
}

Status ConnectionPool::Listen(std::string_view address, uint64_t epoch) {
  if (listener_ != nullptr) return {};
  RABIT_ASSIGN_OR_RETURN(listener_, Listener::Open(address, secret_, epoch, member_));
  return {};
}

Status ConnectionPool::Begin(uint64_t epoch, const std::vector<int>& members) {
  {
    MutexLock lock(mutex_);
    const std::string who = "member " + std::to_string(member_);
    if (is_used_) {
      return InvalidArgument(who + " has an engine of epoch " + std::to_string(epoch_) +
                             " over this pool: stop it before you start the next one");
    }
    // Messages of an earlier epoch may still be under way on kept connections; only a higher number
    // tells them apart.
    if (epoch <= epoch_) {
      return InvalidArgument(who + " has had an engine of epoch " + std::to_string(epoch_) +
                             " over this pool: the next one needs a higher epoch than that, not " +
                             std::to_string(epoch));
    }
    // Two engines over one pool would both take the frames of its connections.
    is_used_ = true;
    epoch_ = epoch;
  }
  // Outside the lock: a handler of the listener may come back into this pool.
  if (listener_ != nullptr) listener_->SetEpoch(epoch);
  // After the listener has the new epoch, or a dropped member could dial in again under the old
  // one.
  kept_.KeepOnly(members);
  return {};
}

void ConnectionPool::End() {
  // The engine has gone, and its transports with it; connections that it did not give back are
  // closed here.
  kept_.Recall();
  MutexLock lock(mutex_);
  is_used_ = false;
}

Result<Versioned> MemberBook::Watch(std::string_view key, uint64_t seen, Deadline deadline) {
  if (!key.starts_with(Members::kKeyStart)) return beneath_.Watch(key, seen, deadline);
  {
    MutexLock lock(facts_.mutex);
    const auto found = facts_.values.find(key);
    // What a member publishes of itself never changes as long as it lives, so the first answer is
    // good for all epochs.
    if (found != facts_.values.end()) return Versioned{1, found->second};
  }
  // The wait for the store holds no lock: several threads may wait for several members.
  RABIT_ASSIGN_OR_RETURN(Versioned told, beneath_.Watch(key, 0, deadline));
  Learn(std::string(key), told.value);
  return told;
}

bool MemberBook::Knows(std::string_view key) const {
  MutexLock lock(facts_.mutex);
  return facts_.values.contains(key);
}

void MemberBook::Learn(const std::string& key, const std::string& value) {
  if (!key.starts_with(Members::kKeyStart)) return;
  MutexLock lock(facts_.mutex);
  // emplace keeps the first value: a thread that asked at the same time has learned the same.
  facts_.values.emplace(key, value);
}

}  // namespace rabit

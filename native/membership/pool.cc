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
    if (epoch <= epoch_) {
      return InvalidArgument(who + " has had an engine of epoch " + std::to_string(epoch_) +
                             " over this pool: the next one needs a higher epoch than that, not " +
                             std::to_string(epoch));
    }
    is_used_ = true;
    epoch_ = epoch;
  }
  if (listener_ != nullptr) listener_->SetEpoch(epoch);
  kept_.KeepOnly(members);
  return {};
}

void ConnectionPool::End() {
  kept_.Recall();
  MutexLock lock(mutex_);
  is_used_ = false;
}

Result<Versioned> MemberBook::Watch(std::string_view key, uint64_t seen, Deadline deadline) {
  if (!key.starts_with(Members::kKeyStart)) return beneath_.Watch(key, seen, deadline);
  {
    MutexLock lock(facts_.mutex);
    const auto found = facts_.values.find(key);
    if (found != facts_.values.end()) return Versioned{1, found->second};
  }
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
  facts_.values.emplace(key, value);
}

}  // namespace rabit

// KeptSockets: the connections of a process that no engine uses at the moment.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "transport/link_keeper.h"

namespace rabit {

// Thread-safe.
class KeptSockets final : public LinkKeeper {
 public:
  std::optional<KeptSocket> Take(std::string_view purpose, int member, int index) override {
    MutexLock lock(mutex_);
    const auto found = sockets_.find(Name(purpose, member, index));
    if (found == sockets_.end()) return std::nullopt;
    std::optional<KeptSocket> socket(std::move(found->second));
    sockets_.erase(found);
    return socket;
  }

  void Keep(std::string_view purpose, int member, int index, KeptSocket socket) override {
    MutexLock lock(mutex_);
    sockets_.insert_or_assign(Name(purpose, member, index), std::move(socket));
  }

  void Enter(LinkBorrower& borrower) override {
    MutexLock lock(mutex_);
    borrowers_.push_back(&borrower);
  }

  void Leave(LinkBorrower& borrower) override {
    MutexLock lock(mutex_);
    std::erase(borrowers_, &borrower);
  }

  // All that are in use come back.  Nobody who uses them is destroyed meanwhile.
  void Recall() {
    std::vector<LinkBorrower*> borrowers;
    {
      MutexLock lock(mutex_);
      borrowers = borrowers_;
    }
    for (LinkBorrower* const each : borrowers) each->GiveBack();
  }

  // Closes the connections with all others: nobody hears them any more.
  void KeepOnly(const std::vector<int>& members) {
    MutexLock lock(mutex_);
    std::erase_if(sockets_, [&members](const auto& entry) {
      const int member = std::get<int>(entry.first);
      return std::find(members.begin(), members.end(), member) == members.end();
    });
  }

  size_t size() const {
    MutexLock lock(mutex_);
    return sockets_.size();
  }

 private:
  struct Index {
    int value;
    auto operator<=>(const Index&) const = default;
  };
  using Key = std::tuple<std::string, int, Index>;  // purpose, member
  static Key Name(std::string_view purpose, int member, int index) {
    return {std::string(purpose), member, Index{index}};
  }

  mutable Mutex mutex_;
  std::vector<LinkBorrower*> borrowers_ RABIT_GUARDED_BY(mutex_);
  std::map<Key, KeptSocket> sockets_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

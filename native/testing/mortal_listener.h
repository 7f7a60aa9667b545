// MortalListener: a listener that can die as if its process had, for tests within one process.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "rendezvous/listener.h"

namespace rabit::testing {

class MortalListener final : public Listener {
 public:
  explicit MortalListener(std::unique_ptr<Listener> living) : living_(std::move(living)) {
    address_ = living_->address();
  }

  std::string address() const override { return address_; }

  void SetEpoch(uint64_t epoch) override {
    MutexLock lock(mutex_);
    if (living_ != nullptr) living_->SetEpoch(epoch);
  }

  void SetHandler(std::string_view purpose, std::function<void(AuthenticatedPeer)> handler) override {
    MutexLock lock(mutex_);
    if (living_ == nullptr) return;
    living_->SetHandler(purpose, [this, handler](AuthenticatedPeer peer) {
      if (!Admit(peer)) return;
      handler(std::move(peer));
    });
  }

  void RemoveHandler(std::string_view purpose) override {
    MutexLock lock(mutex_);
    if (living_ != nullptr) living_->RemoveHandler(purpose);
  }

  // Its port refuses connections from now on, and those that were made break.
  void Die() {
    std::unique_ptr<Listener> dying;
    {
      MutexLock lock(mutex_);
      dying = std::move(living_);
    }
    dying.reset();
    Cut(-1);
  }
  // The rank's connections break, and none is taken any more.
  void Shun(int rank) {
    {
      MutexLock lock(ends_mutex_);
      shunned_.push_back(rank);
    }
    Cut(rank);
  }
  // Breaks the connections that `rank` has dialled, or all with -1, with a reset.
  void Cut(int rank) {
    MutexLock lock(ends_mutex_);
    for (auto& [from, fd] : ends_) {
      if (rank >= 0 && from != rank) continue;
      ::shutdown(fd.get(), SHUT_RDWR);
    }
  }

 private:
  bool Admit(const AuthenticatedPeer& peer) {
    MutexLock lock(ends_mutex_);
    for (const int rank : shunned_) {
      if (rank == peer.greeting.rank) return false;
    }
    ends_.emplace_back(peer.greeting.rank, ::fcntl(peer.fd.get(), F_DUPFD_CLOEXEC, 0));
    return true;
  }

  std::string address_;
  Mutex mutex_;
  std::unique_ptr<Listener> living_ RABIT_GUARDED_BY(mutex_);
  Mutex ends_mutex_;
  std::vector<std::pair<int, UniqueFd>> ends_ RABIT_GUARDED_BY(ends_mutex_);
  std::vector<int> shunned_ RABIT_GUARDED_BY(ends_mutex_);
};

}  // namespace rabit::testing

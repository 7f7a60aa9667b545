// Holders: which server has which place, as far as a worker knows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/status.h"

namespace rabit {

// A server that is lost leaves its place to the next one behind it that lives.  Thread-safe.
class Holders {
 public:
  // Called once for each server that is lost, with how that was found.
  using OnLoss = std::function<void(int server, const Status& why)>;

  Holders(int servers, int replicas, OnLoss on_loss = nullptr)
      : is_lost_(static_cast<size_t>(servers)), replicas_(replicas), on_loss_(std::move(on_loss)) {}

  // Whether there is somebody to take over.
  bool can_lose() const { return replicas_ > 1; }
  void Lose(int server, const Status& why) {
    const bool was_lost = is_lost_[static_cast<size_t>(server)].exchange(true);
    if (!was_lost && on_loss_) on_loss_(server, why);
  }
  bool has_lost(int server) const { return is_lost_[static_cast<size_t>(server)].load(); }
  // The server that has the place of `server`; -1: all are lost.
  int Of(int server) const {
    const auto servers = static_cast<int>(is_lost_.size());
    for (int i = 0; i < servers; ++i) {
      const int each = (server + i) % servers;
      if (!has_lost(each)) return each;
    }
    return -1;
  }

 private:
  std::vector<std::atomic<bool>> is_lost_;
  const int replicas_;
  const OnLoss on_loss_;
};

// What a worker knows of a place, for one group on one lane.
struct PlaceRoute {
  int holder = 0;       // the server that it was with last
  uint64_t pushes = 0;  // that are over
};

}  // namespace rabit

// Holders: which server has which place, as far as a worker knows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rabit {

// A server that is lost leaves its place to the next one behind it that lives.  Thread-safe.
class Holders {
 public:
  Holders(int servers, int replicas)
      : is_lost_(static_cast<size_t>(servers)), replicas_(replicas) {}

  // Whether there is somebody to take over.
  bool can_lose() const { return replicas_ > 1; }
  void Lose(int server) { is_lost_[static_cast<size_t>(server)].store(true); }
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
};

// What a worker knows of a place, for one group on one lane.
struct PlaceRoute {
  int holder = 0;       // the server that it was with last
  uint64_t pushes = 0;  // that are over
};

}  // namespace rabit

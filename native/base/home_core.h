// HomeCore: the core that a rank's threads return to, where ranks outnumber the cores.
#pragma once

#include <atomic>
#include <chrono>

#include "base/bytes.h"
#include "base/processors.h"

namespace rabit {

// Data that come over a socket of this host wake their receiver on the sender's core, if the kernel
// believes that the sender is about to sleep.  So of four ranks three gather on one of two cores,
// work there in turns, and stay.  A thread that is sent to another core, and allowed everywhere at
// once, is free as before, but begins where no more ranks are than elsewhere.  Thread-safe.
class HomeCore {
 public:
  HomeCore() = default;  // none
  HomeCore(int core, int total) : core_(core), total_(total) {}
  HomeCore(const HomeCore& other) : HomeCore(other.core_, other.total_) {}
  HomeCore& operator=(const HomeCore& other) {
    core_ = other.core_;
    total_ = other.total_;
    return *this;
  }

  // Of rank `index` of those of one host, which may use these processors, all the same.  None if
  // each can have one to itself, if there is no even spread, which ranks that move about do better
  // without, or if somebody has told them apart.
  static HomeCore Of(int index, const HostCores& cores, const Processors& processors);

  // The calling thread goes there, if that is due.  Leaves one alone that may not use as many
  // processors as its rank could at first.
  void Return(Deadline now);
  // Whether a thread that is on `core` is sent now: it is away, and nobody was sent in the last
  // millisecond.  If so, it counts as sent.
  bool IsDue(int core, Deadline now);

  int core() const { return core_; }  // -1: none

 private:
  void Send() const;

  int core_ = -1;
  int total_ = 0;
  std::atomic<Deadline> sent_{};
};

}  // namespace rabit

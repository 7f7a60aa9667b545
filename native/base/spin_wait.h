// SpinWait: how one wait for another rank passes its time before it sleeps.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/bytes.h"
#include "base/spin_budget.h"

namespace rabit {

// Whoever waits looks whether what it waits for has come, and asks in between what to do.  What
// decides stands here for all waits: for how long they spin, when the core is given away, and what
// one wait teaches the next (see SpinBudget).  One thread, one wait.
class SpinWait {
 public:
  // The clock is read once in `looks_per_clock` looks: it costs more than a look at memory, and
  // less than one that is a system call.
  explicit SpinWait(SpinBudget& budget, uint32_t looks_per_clock = 1)
      : budget_(budget), looks_per_clock_(looks_per_clock), gives_way_(budget.yields()) {}

  // A look has found something: what comes next is waited for anew.  A core that was given away may
  // come back late, if others compute: a sleeper would have been woken at once.
  void OnFound() {
    if (!is_spinning_) return;
    is_spinning_ = false;
    if (gives_way_ && std::chrono::steady_clock::now() >= end_) {
      budget_.EndedInSleep();
    } else {
      budget_.PaidOff();
    }
  }

  // Asked once for each look.
  bool IsClockDue() { return looks_++ % looks_per_clock_ == 0 || gives_way_; }

  // False: it is time to sleep; the wait then begins anew.  `shares_core`: whoever is waited for
  // was last seen on this core, and gets on only if it has it.
  bool MaySpin(Deadline now, bool shares_core = false) {
    if (!is_spinning_) end_ = now + budget_.Begin();
    gives_way_ = budget_.yields() || shares_core;
    is_spinning_ = now < end_;
    if (is_spinning_) return true;
    budget_.EndedInSleep();
    looks_ = 0;
    return false;
  }

  // Between two looks that find nothing.
  void Rest() const { SpinBudget::Rest(gives_way_); }

 private:
  SpinBudget& budget_;
  const uint32_t looks_per_clock_;
  uint32_t looks_ = 0;
  bool gives_way_;
  bool is_spinning_ = false;
  Deadline end_{};
};

}  // namespace rabit

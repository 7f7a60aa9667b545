// SpinTimes: how long waits for other ranks spin at most, over shared memory and sockets alike.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/processors.h"
#include "base/spin_budget.h"

namespace rabit {

// Of one place in which threads wait; see SpinBudgets and SpinBudget.
struct SpinTimes {
  std::chrono::nanoseconds background{0};
  std::chrono::nanoseconds caller{0};
  bool yields = false;

  SpinBudgets Budgets() const { return SpinBudgets(background, caller, yields); }
};

// `spin_us`: what the user wants, or -1 to choose; `cores`: of this host.  Where ranks have a core
// each, 50 us, and 200 for callers.  Where they share cores, 200 in which the core is given away
// between two looks.
SpinTimes SpinTimesFor(int32_t spin_us, const HostCores& cores);
// The same for waits on sockets, which give the core away in any case.  A look is a system call, so
// that costs little more, and keeps ranks that the kernel has put on one core from holding each
// other up, which happens even where each could have its own.
SpinTimes SocketSpinTimesFor(int32_t spin_us, const HostCores& cores);

}  // namespace rabit

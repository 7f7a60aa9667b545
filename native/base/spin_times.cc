#include "base/spin_times.h"

namespace rabit {
namespace {

constexpr std::chrono::microseconds kBackgroundSpin{50};
constexpr std::chrono::microseconds kCallerSpin{200};
constexpr std::chrono::microseconds kYieldSpin{200};

}  // namespace

SpinTimes SpinTimesFor(int32_t spin_us, const HostCores& cores) {
  const bool yields = cores.are_shared();
  if (spin_us >= 0) {
    return {std::chrono::microseconds(spin_us), std::chrono::microseconds(spin_us), yields};
  }
  if (yields) return {kYieldSpin, kYieldSpin, true};
  return {kBackgroundSpin, kCallerSpin, false};
}

SpinTimes SocketSpinTimesFor(int32_t spin_us, const HostCores& cores) {
  SpinTimes spin = SpinTimesFor(spin_us, cores);
  spin.yields = true;
  return spin;
}

}  // namespace rabit

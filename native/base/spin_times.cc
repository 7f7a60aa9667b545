#include "base/spin_times.h"

#include <thread>

namespace rabit {
namespace {

constexpr std::chrono::microseconds kBackgroundSpin{50};
constexpr std::chrono::microseconds kCallerSpin{200};
constexpr std::chrono::microseconds kYieldSpin{200};

}  // namespace

SpinTimes SpinTimesFor(int32_t spin_us, int local_size) {
  const bool yields = std::thread::hardware_concurrency() < static_cast<unsigned>(local_size);
  if (spin_us >= 0) {
    return {std::chrono::microseconds(spin_us), std::chrono::microseconds(spin_us), yields};
  }
  if (yields) return {kYieldSpin, kYieldSpin, true};
  return {kBackgroundSpin, kCallerSpin, false};
}

SpinTimes SocketSpinTimesFor(int32_t spin_us, int local_size) {
  SpinTimes spin = SpinTimesFor(spin_us, local_size);
  spin.yields = true;
  return spin;
}

}  // namespace rabit

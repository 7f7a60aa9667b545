#include "base/wake_signal.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace rabit {

void WakeSignal::WakeSleepers() {
  // All sleepers, because their conditions differ; each looks at its own.
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&epoch_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
            nullptr, 0);
}

bool WakeSignal::Sleep(uint32_t seen_epoch, Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  if (left <= std::chrono::nanoseconds(0)) return false;
  // A deadline that stands for "no end" does not fit into the kernel's time; the caller comes back
  // and sleeps again.
  const auto capped = std::min<std::chrono::nanoseconds>(left, std::chrono::hours(1));
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(capped.count() / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(capped.count() % 1'000'000'000);
  // Whatever ends the sleep, the caller looks at its condition and at the clock again.
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&epoch_), FUTEX_WAIT_PRIVATE, seen_epoch,
            &timeout, nullptr, 0);
  return true;
}

}  // namespace rabit

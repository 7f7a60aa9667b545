#include "transport/shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace rabit {

void Ring(Doorbell& bell) {
  // The order of this look behind the caller's write is what the sleeper relies on
  // (ShmStream::Wait); a weaker one would lose wakes.
  if (bell.sleepers.load(std::memory_order_seq_cst) != 0) RingAlways(bell);
}

void RingAlways(Doorbell& bell) {
  bell.sequence.fetch_add(1, std::memory_order_seq_cst);
  // Not FUTEX_PRIVATE: the sleeper may be another process.
  syscall(SYS_futex, &bell.sequence, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SleepUntilRung(Doorbell& bell, uint32_t seen, Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  if (left <= left.zero()) return;
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  const timespec timeout{static_cast<time_t>(ns / 1'000'000'000), ns % 1'000'000'000};
  // The kernel compares the sequence once more: a ring since `seen` was read makes this return at
  // once.
  syscall(SYS_futex, &bell.sequence, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

}  // namespace rabit

// Clock: where those who work with deadlines take the time from.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/bytes.h"

namespace rabit {

// Passed to whoever compares the time with what it remembers, so that a test can let days pass at
// once.  Now never runs backwards.  Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Deadline Now() const = 0;
};

// The machine's monotonic clock.
class SteadyClock final : public Clock {
 public:
  Deadline Now() const override { return std::chrono::steady_clock::now(); }
};
inline const SteadyClock kSteadyClock;

inline int64_t NanosOf(Deadline time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
inline int64_t MicrosOf(Deadline time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}
inline Deadline DeadlineAtMicros(int64_t micros) {
  return Deadline(std::chrono::microseconds(micros));
}

// For those who measure how long something takes.
inline int64_t NowNs() { return NanosOf(kSteadyClock.Now()); }

}  // namespace rabit

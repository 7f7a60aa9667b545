// The one clock of the controllers: microseconds of the monotonic clock.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/bytes.h"

namespace rabit {

inline int64_t NowMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             Deadline::clock::now().time_since_epoch())
      .count();
}

inline Deadline DeadlineAt(int64_t micros) { return Deadline(std::chrono::microseconds(micros)); }

}  // namespace rabit

// Guard: what every function of the C ABI does around its work.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace rabit {

// The code of `status`; text and culprit are kept for rabit_last_error of this thread.
int32_t Report(const Status& status);
// The same for a shortage of memory: allocates nothing.
int32_t ReportBadAlloc();

// Runs `body`, which returns a Status; memory shortage is the only exception that can come.
template <class Body>
int32_t Guard(Body body) noexcept {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return ReportBadAlloc();
  } catch (const std::exception& error) {
    return Report(Internal(std::string("unexpected exception: ") + error.what() + "; report this"));
  }
}

Status NullArgument(const char* function, const char* argument);

#define RABIT_REQUIRE_POINTER(pointer) \
  if ((pointer) == nullptr) return NullArgument(__func__, #pointer)

// timeout_ms < 0: as good as none.
Deadline DeadlineFor(int64_t timeout_ms);

}  // namespace rabit

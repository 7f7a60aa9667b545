// Guard: what every function of the C ABI does around its work.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "base/bytes.h"
#include "base/status.h"

namespace rabit {

// The code of `status`; text and culprit are kept for rabit_last_error of this thread.
int32_t Report(const Status& status);
// The same for a shortage of memory: allocates nothing.
int32_t ReportBadAlloc();

// Of a std::thread that cannot be started, or of another thing that the system does not give.
Status Refused(const std::system_error& error);

// Runs `body`, which returns a Status; only a shortage, of memory or of threads, comes as an
// exception.
template <class Body>
int32_t Guard(Body body) noexcept {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return ReportBadAlloc();
  } catch (const std::system_error& error) {
    return Report(Refused(error));
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

#include "abi/guard.h"

#include "include/rabit_abi.h"

namespace rabit {
namespace {

// Of this thread's last failed call.
thread_local std::string last_error;
thread_local int32_t last_culprit = -1;

}  // namespace

int32_t Report(const Status& status) {
  if (status.ok()) return RABIT_OK;
  last_error = status.message();
  last_culprit = status.culprit();
  return static_cast<int32_t>(status.code());
}

int32_t ReportBadAlloc() {
  last_error.clear();  // shorter than the capacity: allocates nothing
  last_culprit = -1;
  return RABIT_RESOURCE_EXHAUSTED;
}

Status Refused(const std::system_error& error) {
  return ResourceExhausted(
      std::string("the system gives no further thread: ") + error.what() +
      ". The user or the container has as many threads and processes as it may have: raise the "
      "limit "
      "('ulimit -u', or pids.max of the container), or start fewer ranks on this host");
}

Status NullArgument(const char* function, const char* argument) {
  return InvalidArgument(std::string(function) + ": " + argument +
                         " is NULL: the call cannot work without it; pass a valid pointer");
}

Deadline DeadlineFor(int64_t timeout_ms) {
  constexpr int64_t kYearMs = int64_t{365} * 24 * 3'600'000;
  if (timeout_ms < 0 || timeout_ms > kYearMs) timeout_ms = kYearMs;
  return After(std::chrono::milliseconds(timeout_ms));
}

}  // namespace rabit

const char* rabit_last_error(void) { return rabit::last_error.c_str(); }
int32_t rabit_last_culprit(void) { return rabit::last_culprit; }

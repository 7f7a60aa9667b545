// WaitWhileAlive: how a server waits for its workers and for other servers.
#pragma once

#include <chrono>

#include "base/bytes.h"
#include "base/operation.h"
#include "base/status.h"

namespace rabit {

// As long as they live, which the transport finds out.  `wait` takes a deadline.
template <class Wait>
Status WaitWhileAlive(Wait wait) {
  for (;;) {
    Status status = wait(After(std::chrono::hours(1)));
    if (status.code() != Code::kTimedOut) return status;
  }
}
inline Status WaitWhileAlive(Operation& operation) {
  return WaitWhileAlive([&](Deadline deadline) { return operation.Wait(deadline); });
}

}  // namespace rabit

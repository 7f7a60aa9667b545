// Waiting for collectives that are on the stream of a device.
#pragma once

#include <algorithm>
#include <chrono>

#include "backend/backend.h"
#include "base/device/device.h"

namespace rabit {

// How often it is asked whether a collective has failed: kernels that wait for a lost rank end only
// when the backend is told to give up.
inline constexpr auto kAskForFailures = std::chrono::milliseconds(2);

// Until `event`, which was recorded after collectives of `backend`, is over, or they have failed;
// kTimedOut: it goes on.
inline Status WaitOnStream(Backend& backend, const Group& group, const DevicePlace& place,
                           void* event, Deadline deadline) {
  for (;;) {
    const Deadline next = std::min(deadline, After(kAskForFailures));
    const Status status = WaitOver(*place.driver, place.device, event, next);
    if (!status.ok() && status.code() != Code::kTimedOut) return status;
    // Also of what is over: kernels end without a result when they are given up.
    RABIT_RETURN_IF_ERROR(backend.Failure(group));
    if (status.ok() || std::chrono::steady_clock::now() >= deadline) return status;
  }
}

}  // namespace rabit

// Waiting for collectives that are on the stream of a device.
#pragma once

#include <algorithm>
#include <chrono>

#include "backend/backend.h"
#include "base/device/ask_until.h"
#include "base/device/device.h"

namespace rabit {

// How often it is asked whether a collective has failed: kernels that wait for a lost rank end only
// when the backend is told to give up.
inline constexpr auto kAskForFailures = std::chrono::milliseconds(2);

// Until `event`, which was recorded after collectives of `backend`, is over, or they have failed;
// kTimedOut: it goes on.
inline Status WaitOnStream(Backend& backend, const Group& group, const DevicePlace& place,
                           void* event, Deadline deadline) {
  const Deadline began = std::chrono::steady_clock::now();
  Deadline next = began + kAskForFailures;
  RABIT_ASSIGN_OR_RETURN(const bool is_over, AskUntil(deadline, [&]() -> Result<bool> {
                           RABIT_ASSIGN_OR_RETURN(const bool is_over,
                                                  place.driver->IsOver(place.device, event));
                           const Deadline now = std::chrono::steady_clock::now();
                           if (!is_over && now < std::min(next, deadline)) return false;
                           // Also of what is over: kernels end without a result when they are given
                           // up.
                           RABIT_RETURN_IF_ERROR(backend.Failure(group));
                           next = now + kAskForFailures;
                           return is_over;
                         }));
  return is_over ? Status() : NotOver(*place.driver, place.device, began);
}

}  // namespace rabit

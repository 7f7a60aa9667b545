// Patience: how long the threads of one engine wait for each other when something has failed.
#pragma once

#include <chrono>

#include "backend/backend.h"

namespace rabit {

// A lane that has lost a peer only suspects it.  The control plane has this long to name the rank
// that has really died; then the suspicion stands.
inline constexpr std::chrono::milliseconds kSuspicionGrace{300};
// Whoever has reported a suspicion waits this long for the verdict, and reports its own suspicion
// afterwards.
inline constexpr std::chrono::milliseconds kVerdictWithin{2000};
// Lanes end at once when their backends are aborted; a lane that does not is left behind.
inline constexpr std::chrono::milliseconds kLanesEndWithin{1500};
// From the verdict to the end of the engine thread, which aborts the backends and joins the lanes.
inline constexpr std::chrono::milliseconds kEngineEndsWithin{4000};

// Otherwise whoever suspects a survivor would name it before the verdict has come.
static_assert(2 * kSuspicionGrace < kVerdictWithin);
// Otherwise an engine thread that does what it must would be left behind.
static_assert(kAbortWithin + kLanesEndWithin < kEngineEndsWithin);

}  // namespace rabit

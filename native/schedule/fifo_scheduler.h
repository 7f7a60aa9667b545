// The scheduler without priorities: arrival order.  The reference that others are tested against.
#pragma once

#include <memory>

#include "schedule/lane_classes.h"
#include "schedule/scheduler.h"

namespace rabit {

// Fuses neighbours only, so that partitions run exactly in the order of their arrival.
std::unique_ptr<Scheduler> MakeFifoScheduler(const ScheduleLimits& limits);
std::unique_ptr<Scheduler> MakeFifoScheduler(const ScheduleLimits& limits,
                                             LaneClassOptions classes);

}  // namespace rabit

// The scheduler with priorities: what the next forward pass needs first, runs first.
#pragma once

#include <memory>

#include "schedule/lane_classes.h"
#include "schedule/scheduler.h"

namespace rabit {

// Strict priority with a credit window, as in ByteScheduler (Peng et al., 2019): of what is queued
// the largest priority runs next, first come first served on ties, while the bytes in flight fit
// limits.credit_bytes.  Without a limit everything is issued at once and priority only orders what
// became ready together.
//
// A bucket is filled from the head of that order.  It may pass over a partition that cannot be
// fused with the head only for one of the head's own priority: mixed dtypes of equal priority still
// fuse, and nothing urgent waits for something less urgent.
std::unique_ptr<Scheduler> MakePriorityScheduler(const ScheduleLimits& limits);
std::unique_ptr<Scheduler> MakePriorityScheduler(const ScheduleLimits& limits,
                                                 LaneClassOptions classes);

}  // namespace rabit

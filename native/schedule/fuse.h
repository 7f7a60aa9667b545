// Puts partitions that can run as one collective into one bucket.
#pragma once

#include <cstdint>

#include "schedule/partition.h"
#include "schedule/scheduler.h"

namespace rabit {

// True if partitions of both may share a bucket: the same divisible collective in everything that
// the collective depends on.
bool CanFuse(const ScheduledTensor& a, const ScheduledTensor& b);

// The bytes up to which a bucket is filled: fusion_bytes, but no more than the whole credit window,
// which a larger bucket would have to itself.
int64_t FillLimit(const ScheduleLimits& limits);

}  // namespace rabit

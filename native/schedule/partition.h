// Cuts tensors into partitions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "schedule/scheduler.h"

namespace rabit {

// A partition in a scheduler's queue.
struct QueuedPartition {
  std::shared_ptr<const ScheduledTensor> tensor;
  Partition partition;
  // What it costs of fusion and credit.  The same on every rank: kinds whose sizes differ between
  // ranks cost a fixed amount, because ranks that counted differently would issue other buckets.
  int64_t bytes = 0;
  uint64_t sequence = 0;  // order of arrival
  int32_t priority = 0;   // the tensor's
};

// What the largest partition of the tensor costs; see QueuedPartition::bytes.
int64_t LargestPartitionBytes(const ScheduledTensor& tensor, const ScheduleLimits& limits);

// Appends the partitions of the tensor in order of offset.  Every cut is at a multiple of
// limits.partition_bytes, rounded down to the tensor's cut_multiple (0: never cut).  A tensor
// without elements is one empty partition.
void AppendPartitions(const std::shared_ptr<const ScheduledTensor>& tensor,
                      const ScheduleLimits& limits, uint64_t& next_sequence,
                      std::vector<QueuedPartition>& to);

}  // namespace rabit

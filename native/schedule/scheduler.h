// Scheduler: turns agreements into buckets.  A replicated state machine: fed the same agreements
// in the same order it returns the same buckets on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bucket_counts.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "base/json_writer.h"
#include "base/shared_list.h"
#include "base/work.h"

namespace rabit {

// A tensor that all ranks have agreed to run; what the scheduler needs to know of it.
struct ScheduledTensor : Work {
  TensorId id = -1;
  // Elements on this rank, or of the largest of even parts; equal on all ranks where is_divisible.
  int64_t count = 0;
  int32_t priority = 0;  // larger runs first
  std::vector<int> joined;
  int64_t cut_multiple = 1;  // elements: it is cut at multiples of so many only
  bool is_of_all = true;     // its group has every rank
};

using ScheduledTensors = SharedList<ScheduledTensor>;

struct Partition {
  TensorId tensor = -1;
  int64_t offset = 0;  // elements; of every even part, as far as it reaches
  int64_t count = 0;
  bool is_last = false;  // of its tensor
};

// What runs as one collective.  All partitions share everything but their tensor.
struct Bucket : Work {
  uint64_t id = 0;         // consecutive within its class
  int32_t lane_class = 0;  // see LaneClasses
  int32_t lane = 0;        // derived from both, so lanes and tags line up on all ranks
  std::vector<int> joined;
  std::vector<Partition> partitions;
};

struct ScheduleLimits {
  int64_t partition_bytes = 4 << 20;  // allreduce tensors are cut at multiples of this
  int64_t fusion_bytes = 64 << 20;    // a bucket holds at most this; 0: no fusion
  int64_t credit_bytes = 0;  // of a class, issued and not yet done on all ranks; 0: no limit
  int32_t lanes = 2;         // of a class
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // `ready` in agreed order; `buckets_done` is the agreed credit (Agreement::buckets_done).
  virtual std::vector<Bucket> Advance(const ScheduledTensors& ready,
                                      const BucketCounts& buckets_done) = 0;
  // From the next bucket on.  What is queued keeps its cuts, and what is in flight its credit.
  // Every rank calls it between the same two calls of Advance.
  virtual void SetLimits(const ScheduleLimits& limits) = 0;
  virtual const ScheduleLimits& limits() const = 0;
  // Partitions that wait for credit.
  virtual size_t backlog() const = 0;
  virtual int32_t classes() const = 0;  // of lanes
  virtual const std::string& class_name(int32_t lane_class) const = 0;
  // The member "lane_classes": an object for each class.
  virtual void WriteStatistics(JsonWriter& json) const = 0;
};

}  // namespace rabit

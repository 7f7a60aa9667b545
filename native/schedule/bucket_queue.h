// BucketQueue: the partitions that wait, and which of them make the next bucket.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "schedule/partition.h"
#include "schedule/scheduler.h"

namespace rabit {

// A turn is some Add, one EndArrivals, then Choose and Take as long as there is credit, then
// EndTurn.
class BucketQueue {
 public:
  // What the next bucket is made for, and its bytes.
  struct Head {
    const ScheduledTensor* first = nullptr;
    int64_t bytes = 0;
  };

  virtual ~BucketQueue() = default;
  virtual void Add(const std::shared_ptr<const ScheduledTensor>& tensor,
                   const ScheduleLimits& limits) = 0;
  virtual void EndArrivals() = 0;
  virtual bool empty() = 0;
  // Not empty.
  virtual Head Choose(const ScheduleLimits& limits) = 0;
  // Moves what has been chosen last to the end of `to`.
  virtual void Take(std::vector<Partition>& to) = 0;
  virtual void EndTurn() = 0;
  virtual size_t size() const = 0;
};

}  // namespace rabit

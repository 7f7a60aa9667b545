// LaneClasses: the lanes of each backend, and what is in flight on them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/bucket_counts.h"
#include "base/json_writer.h"
#include "schedule/credit_window.h"
#include "schedule/scheduler.h"

namespace rabit {

// A class for each backend that operations can name, in the order of BackendId.
struct LaneClassOptions {
  // Who would run so many bytes of this work as one exchange.  Pure, and equal on all ranks, those
  // outside of the tensor's group included.  Not asked where there is one class.
  using ClassOf = std::function<int32_t(const ScheduledTensor& tensor, int64_t bytes)>;

  std::vector<std::string> names = {"builtin"};
  int32_t lanes_started = 2;  // of each class; the first of class c has number c * lanes_started
  ClassOf class_of;
  // A class whose buckets all go to its first lane, because they must begin in one order; -1: none.
  int32_t ordered_class = -1;
};

// A slow backend's buckets hold up neither the lanes nor the credit of a fast one.  Within a class
// the buckets of each lane are begun in the order of their ids on all ranks, and lanes do not wait
// for each other, so that no order of calls makes ranks wait in a circle.
class LaneClasses {
 public:
  LaneClasses(const ScheduleLimits& limits, LaneClassOptions options);

  int32_t size() const { return static_cast<int32_t>(classes_.size()); }
  int32_t Of(const ScheduledTensor& tensor, int64_t bytes) const {
    return size() == 1 ? 0 : options_.class_of(tensor, bytes);
  }
  const ScheduleLimits& limits() const { return limits_; }
  void SetLimits(const ScheduleLimits& limits);

  void Return(const BucketCounts& done);
  // The next bucket of the class that runs `bytes` of this work, still empty; nothing if the class
  // has no credit for it.
  std::optional<Bucket> TryIssue(const ScheduledTensor& work, int64_t bytes);

  // Members of the class's object.
  void WriteStatistics(int32_t lane_class, JsonWriter& json) const;
  const std::string& name(int32_t lane_class) const {
    return options_.names[static_cast<size_t>(lane_class)];
  }

 private:
  int32_t LanesOf(int32_t lane_class) const;  // in use

  const LaneClassOptions options_;
  ScheduleLimits limits_;
  std::vector<CreditWindow> classes_;
};

}  // namespace rabit

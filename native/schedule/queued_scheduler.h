// The Scheduler over queues, one for each class of lanes.
#pragma once

#include <memory>
#include <vector>

#include "schedule/bucket_queue.h"
#include "schedule/lane_classes.h"

namespace rabit {

// A tensor waits with those that would run where it would, if it ran alone or in whole partitions.
// The bucket that it gets into may be larger, and run elsewhere by a rule of sizes; it then takes
// number, lane and credit of the class where it runs.
class QueuedScheduler final : public Scheduler {
 public:
  // As many queues as classes.
  QueuedScheduler(const ScheduleLimits& limits, LaneClassOptions classes,
                  std::vector<std::unique_ptr<BucketQueue>> queues);

  std::vector<Bucket> Advance(const ScheduledTensors& ready,
                              const BucketCounts& buckets_done) override;
  void SetLimits(const ScheduleLimits& limits) override { classes_.SetLimits(limits); }
  const ScheduleLimits& limits() const override { return classes_.limits(); }
  size_t backlog() const override;
  int32_t classes() const override { return classes_.size(); }
  const std::string& class_name(int32_t lane_class) const override {
    return classes_.name(lane_class);
  }
  void WriteStatistics(JsonWriter& json) const override;

 private:
  BucketQueue& QueueOf(const ScheduledTensor& tensor);
  void IssueFrom(BucketQueue& queue, std::vector<Bucket>& buckets);

  LaneClasses classes_;
  const std::vector<std::unique_ptr<BucketQueue>> queues_;
};

template <class Queue>
std::unique_ptr<Scheduler> MakeQueuedScheduler(const ScheduleLimits& limits,
                                               LaneClassOptions classes) {
  std::vector<std::unique_ptr<BucketQueue>> queues;
  for (size_t i = 0; i < classes.names.size(); ++i) queues.push_back(std::make_unique<Queue>());
  return std::make_unique<QueuedScheduler>(limits, std::move(classes), std::move(queues));
}

}  // namespace rabit

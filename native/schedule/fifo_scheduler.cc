#include "schedule/fifo_scheduler.h"

#include <deque>
#include <utility>

#include "schedule/fuse.h"
#include "schedule/partition.h"
#include "schedule/queued_scheduler.h"

namespace rabit {
namespace {

class FifoQueue final : public BucketQueue {
 public:
  void Add(const std::shared_ptr<const ScheduledTensor>& tensor,
           const ScheduleLimits& limits) override {
    arrived_.clear();
    AppendPartitions(tensor, limits, next_sequence_, arrived_);
    for (QueuedPartition& partition : arrived_) queue_.push_back(std::move(partition));
  }
  void EndArrivals() override {}
  bool empty() override { return queue_.empty(); }

  // From the front.
  Head Choose(const ScheduleLimits& limits) override {
    chosen_ = 1;
    int64_t bytes = queue_.front().bytes;
    const ScheduledTensor& first = *queue_.front().tensor;
    if (limits.fusion_bytes <= 0) return {&first, bytes};
    // Only neighbours are joined: it is the reference that other schedulers are compared with, and
    // keeps the order as it came.
    while (chosen_ < queue_.size() && bytes + queue_[chosen_].bytes <= FillLimit(limits) &&
           CanFuse(first, *queue_[chosen_].tensor)) {
      bytes += queue_[chosen_].bytes;
      ++chosen_;
    }
    return {&first, bytes};
  }

  void Take(std::vector<Partition>& to) override {
    for (; chosen_ > 0; --chosen_) {
      to.push_back(queue_.front().partition);
      queue_.pop_front();
    }
  }
  void EndTurn() override {}
  size_t size() const override { return queue_.size(); }

 private:
  uint64_t next_sequence_ = 0;
  std::deque<QueuedPartition> queue_;
  std::vector<QueuedPartition> arrived_;  // kept for its memory
  size_t chosen_ = 0;
};

}  // namespace

std::unique_ptr<Scheduler> MakeFifoScheduler(const ScheduleLimits& limits) {
  return MakeFifoScheduler(limits, {});
}

std::unique_ptr<Scheduler> MakeFifoScheduler(const ScheduleLimits& limits,
                                             LaneClassOptions classes) {
  return MakeQueuedScheduler<FifoQueue>(limits, std::move(classes));
}

}  // namespace rabit

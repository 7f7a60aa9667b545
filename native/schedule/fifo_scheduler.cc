#include "schedule/fifo_scheduler.h"

#include <deque>
#include <utility>

#include "schedule/credit_window.h"
#include "schedule/fuse.h"
#include "schedule/partition.h"

namespace rabit {
namespace {

class FifoScheduler final : public Scheduler {
 public:
  explicit FifoScheduler(const ScheduleLimits& limits)
      : limits_(limits), window_(limits.credit_bytes) {}

  std::vector<Bucket> Advance(const ScheduledTensors& ready, uint64_t buckets_done) override {
    window_.Return(buckets_done);
    arrived_.clear();
    AppendPartitions(ready, limits_, next_sequence_, arrived_);
    for (QueuedPartition& partition : arrived_) queue_.push_back(std::move(partition));

    std::vector<Bucket> buckets;
    while (!queue_.empty()) {
      const auto [length, bytes] = Head();
      if (!window_.Admits(bytes)) break;
      Bucket bucket = BucketFor(*queue_.front().tensor, window_.next_id(), limits_);
      for (size_t i = 0; i < length; ++i) {
        bucket.partitions.push_back(queue_.front().partition);
        queue_.pop_front();
      }
      window_.Issue(bytes);
      buckets.push_back(std::move(bucket));
    }
    return buckets;
  }

  void SetLimits(const ScheduleLimits& limits) override {
    limits_ = limits;
    window_.SetLimit(limits.credit_bytes);
  }
  const ScheduleLimits& limits() const override { return limits_; }

  size_t backlog() const override { return queue_.size(); }

 private:
  // How many partitions from the front make the next bucket, and their bytes.
  std::pair<size_t, int64_t> Head() const {
    size_t length = 1;
    int64_t bytes = queue_.front().bytes;
    if (limits_.fusion_bytes <= 0) return {length, bytes};
    while (length < queue_.size() && bytes + queue_[length].bytes <= FillLimit(limits_) &&
           CanFuse(*queue_.front().tensor, *queue_[length].tensor)) {
      bytes += queue_[length].bytes;
      ++length;
    }
    return {length, bytes};
  }

  ScheduleLimits limits_;
  CreditWindow window_;
  uint64_t next_sequence_ = 0;
  std::deque<QueuedPartition> queue_;
  std::vector<QueuedPartition> arrived_;  // kept for its memory
};

}  // namespace

std::unique_ptr<Scheduler> MakeFifoScheduler(const ScheduleLimits& limits) {
  return std::make_unique<FifoScheduler>(limits);
}

}  // namespace rabit

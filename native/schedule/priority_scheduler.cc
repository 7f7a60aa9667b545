#include "schedule/priority_scheduler.h"

#include <algorithm>
#include <utility>

#include "schedule/credit_window.h"
#include "schedule/fuse.h"
#include "schedule/partition.h"

namespace rabit {
namespace {

// How far a bucket looks past partitions that it cannot take; bounds the work of one bucket.
constexpr size_t kLookAhead = 256;

bool RunsBefore(const QueuedPartition& a, const QueuedPartition& b) {
  if (a.tensor->priority != b.tensor->priority) return a.tensor->priority > b.tensor->priority;
  return a.sequence < b.sequence;
}

class PriorityScheduler final : public Scheduler {
 public:
  explicit PriorityScheduler(const ScheduleLimits& limits)
      : limits_(limits), window_(limits.credit_bytes) {}

  std::vector<Bucket> Advance(const std::vector<ScheduledTensor>& ready,
                              uint64_t buckets_done) override {
    window_.Return(buckets_done);
    Enqueue(ready);
    std::vector<Bucket> buckets;
    size_t head = 0;
    while (true) {
      while (head < queue_.size() && queue_[head].tensor == nullptr) ++head;
      if (head == queue_.size() || !IssueBucket(head, buckets)) break;
    }
    std::erase_if(queue_, [](const QueuedPartition& each) { return each.tensor == nullptr; });
    return buckets;
  }

  size_t backlog() const override { return queue_.size(); }

 private:
  void Enqueue(const std::vector<ScheduledTensor>& ready) {
    if (ready.empty()) return;
    const auto old_size = static_cast<std::ptrdiff_t>(queue_.size());
    for (const ScheduledTensor& tensor : ready)
      AppendPartitions(tensor, limits_, next_sequence_, queue_);
    const auto middle = queue_.begin() + old_size;
    std::sort(middle, queue_.end(), RunsBefore);
    std::inplace_merge(queue_.begin(), middle, queue_.end(), RunsBefore);
  }

  // Moves the next bucket from the queue to `buckets`; taken entries lose their tensor.  False:
  // there is no credit.
  bool IssueBucket(size_t head, std::vector<Bucket>& buckets) {
    const int64_t bytes = Choose(head);
    if (!window_.Admits(bytes)) return false;
    Bucket bucket = BucketFor(*queue_[head].tensor, window_.next_id(), limits_);
    for (size_t index : chosen_) {
      bucket.partitions.push_back(queue_[index].partition);
      queue_[index].tensor = nullptr;
    }
    window_.Issue(bytes);
    buckets.push_back(std::move(bucket));
    return true;
  }

  // Fills chosen_ with the positions that make the next bucket; returns their bytes.
  int64_t Choose(size_t head) {
    const ScheduledTensor& first = *queue_[head].tensor;
    chosen_.assign(1, head);
    int64_t bytes = queue_[head].bytes;
    if (limits_.fusion_bytes <= 0 || !IsDivisible(first.kind)) return bytes;
    size_t passed = 0;
    for (size_t i = head + 1; i < queue_.size() && passed < kLookAhead; ++i) {
      if (queue_[i].tensor == nullptr) continue;
      if (passed > 0 && queue_[i].tensor->priority != first.priority) break;
      if (!CanFuse(first, *queue_[i].tensor)) {
        ++passed;
        continue;
      }
      if (bytes + queue_[i].bytes > FillLimit(limits_)) break;
      bytes += queue_[i].bytes;
      chosen_.push_back(i);
    }
    return bytes;
  }

  const ScheduleLimits limits_;
  CreditWindow window_;
  uint64_t next_sequence_ = 0;
  std::vector<QueuedPartition> queue_;  // in the order in which it runs
  std::vector<size_t> chosen_;          // kept for its memory
};

}  // namespace

std::unique_ptr<Scheduler> MakePriorityScheduler(const ScheduleLimits& limits) {
  return std::make_unique<PriorityScheduler>(limits);
}

}  // namespace rabit

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

constexpr size_t kNothingTaken = SIZE_MAX;

bool RunsAfter(const QueuedPartition& a, const QueuedPartition& b) {
  if (a.priority != b.priority) return a.priority < b.priority;
  return a.sequence > b.sequence;
}

class PriorityScheduler final : public Scheduler {
 public:
  explicit PriorityScheduler(const ScheduleLimits& limits)
      : limits_(limits), window_(limits.credit_bytes) {}

  std::vector<Bucket> Advance(const ScheduledTensors& ready, uint64_t buckets_done) override {
    window_.Return(buckets_done);
    Enqueue(ready);
    std::vector<Bucket> buckets;
    do {
      while (!queue_.empty() && queue_.back().tensor == nullptr) queue_.pop_back();
    } while (!queue_.empty() && IssueBucket(buckets));
    DropTaken();
    return buckets;
  }

  void SetLimits(const ScheduleLimits& limits) override {
    limits_ = limits;
    window_.SetLimit(limits.credit_bytes);
  }
  const ScheduleLimits& limits() const override { return limits_; }

  size_t backlog() const override { return queue_.size(); }

 private:
  void Enqueue(const ScheduledTensors& ready) {
    if (ready.empty()) return;
    const auto old_size = static_cast<std::ptrdiff_t>(queue_.size());
    AppendPartitions(ready, limits_, next_sequence_, queue_);
    const auto middle = queue_.begin() + old_size;
    // Tensors are numbered in the order of the first step, which is mostly that of the priorities.
    const auto runs_before = [](const auto& a, const auto& b) { return RunsAfter(b, a); };
    if (std::is_sorted(middle, queue_.end(), runs_before)) {
      std::reverse(middle, queue_.end());
    } else {
      std::sort(middle, queue_.end(), RunsAfter);
    }
    std::inplace_merge(queue_.begin(), middle, queue_.end(), RunsAfter);
  }

  // Moves the next bucket from the queue to `buckets`; taken entries lose their tensor.  False:
  // there is no credit.
  bool IssueBucket(std::vector<Bucket>& buckets) {
    const int64_t bytes = Choose();
    if (!window_.Admits(bytes)) return false;
    Bucket bucket = BucketFor(*queue_.back().tensor, window_.next_id(), limits_);
    for (size_t index : chosen_) {
      bucket.partitions.push_back(queue_[index].partition);
      queue_[index].tensor = nullptr;
    }
    lowest_taken_ = std::min(lowest_taken_, chosen_.back());
    window_.Issue(bytes);
    buckets.push_back(std::move(bucket));
    return true;
  }

  // Fills chosen_ with the positions that make the next bucket; returns their bytes.
  int64_t Choose() {
    const size_t head = queue_.size() - 1;
    const ScheduledTensor& first = *queue_[head].tensor;
    chosen_.assign(1, head);
    int64_t bytes = queue_[head].bytes;
    if (limits_.fusion_bytes <= 0 || !first.is_divisible()) return bytes;
    size_t passed = 0;
    for (size_t i = head; i-- > 0 && passed < kLookAhead;) {
      if (queue_[i].tensor == nullptr) continue;
      if (passed > 0 && queue_[i].priority != first.priority) break;
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

  // Closes the gaps.  They lie near the end, so that a long backlog is not moved.
  void DropTaken() {
    if (lowest_taken_ < queue_.size()) {
      const auto first = queue_.begin() + static_cast<std::ptrdiff_t>(lowest_taken_);
      const auto is_taken = [](const QueuedPartition& each) { return each.tensor == nullptr; };
      queue_.erase(std::remove_if(first, queue_.end(), is_taken), queue_.end());
    }
    lowest_taken_ = kNothingTaken;
  }

  ScheduleLimits limits_;
  CreditWindow window_;
  uint64_t next_sequence_ = 0;
  std::vector<QueuedPartition> queue_;  // what runs next is at the end
  std::vector<size_t> chosen_;          // kept for its memory
  size_t lowest_taken_ = kNothingTaken;
};

}  // namespace

std::unique_ptr<Scheduler> MakePriorityScheduler(const ScheduleLimits& limits) {
  return std::make_unique<PriorityScheduler>(limits);
}

}  // namespace rabit

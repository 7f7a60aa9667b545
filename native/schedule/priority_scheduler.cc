#include "schedule/priority_scheduler.h"

#include <algorithm>
#include <utility>

#include "schedule/fuse.h"
#include "schedule/partition.h"
#include "schedule/queued_scheduler.h"

namespace rabit {
namespace {

// How far a bucket looks past partitions that it cannot take; bounds the work of one bucket.
constexpr size_t kLookAhead = 256;

constexpr size_t kNothingTaken = SIZE_MAX;

bool RunsAfter(const QueuedPartition& a, const QueuedPartition& b) {
  if (a.priority != b.priority) return a.priority < b.priority;
  return a.sequence > b.sequence;
}

class PriorityQueue final : public BucketQueue {
 public:
  void Add(const std::shared_ptr<const ScheduledTensor>& tensor,
           const ScheduleLimits& limits) override {
    AppendPartitions(tensor, limits, next_sequence_, queue_);
  }

  void EndArrivals() override {
    const auto middle = queue_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    // Tensors are numbered in the order of the first step, which is mostly that of the priorities.
    const auto runs_before = [](const auto& a, const auto& b) { return RunsAfter(b, a); };
    if (std::is_sorted(middle, queue_.end(), runs_before)) {
      std::reverse(middle, queue_.end());
    } else {
      std::sort(middle, queue_.end(), RunsAfter);
    }
    // The part before `middle` is sorted since the last call, so arrivals cost their own number and
    // one pass.
    std::inplace_merge(queue_.begin(), middle, queue_.end(), RunsAfter);
    sorted_ = queue_.size();
  }

  bool empty() override {
    while (!queue_.empty() && queue_.back().tensor == nullptr) queue_.pop_back();
    return queue_.empty();
  }

  // Fills chosen_ with the positions that make the next bucket.
  Head Choose(const ScheduleLimits& limits) override {
    const size_t head = queue_.size() - 1;
    const ScheduledTensor& first = *queue_[head].tensor;
    chosen_.assign(1, head);
    int64_t bytes = queue_[head].bytes;
    if (limits.fusion_bytes <= 0 || !first.is_divisible()) return {&first, bytes};
    size_t passed = 0;
    for (size_t i = head; i-- > 0 && passed < kLookAhead;) {
      if (queue_[i].tensor == nullptr) continue;
      // Something urgent was passed over: what is less urgent must not overtake it in this bucket.
      if (passed > 0 && queue_[i].priority != first.priority) break;
      if (!CanFuse(first, *queue_[i].tensor)) {
        ++passed;
        continue;
      }
      if (bytes + queue_[i].bytes > FillLimit(limits)) break;
      bytes += queue_[i].bytes;
      chosen_.push_back(i);
    }
    return {&first, bytes};
  }

  // Taken entries lose their tensor.
  void Take(std::vector<Partition>& to) override {
    for (size_t index : chosen_) {
      to.push_back(queue_[index].partition);
      queue_[index].tensor = nullptr;
    }
    lowest_taken_ = std::min(lowest_taken_, chosen_.back());
  }

  // Closes the gaps.  They lie near the end, so that a long backlog is not moved.
  void EndTurn() override {
    if (lowest_taken_ < queue_.size()) {
      const auto first = queue_.begin() + static_cast<std::ptrdiff_t>(lowest_taken_);
      const auto is_taken = [](const QueuedPartition& each) { return each.tensor == nullptr; };
      queue_.erase(std::remove_if(first, queue_.end(), is_taken), queue_.end());
    }
    lowest_taken_ = kNothingTaken;
    sorted_ = queue_.size();
  }

  size_t size() const override { return queue_.size(); }

 private:
  uint64_t next_sequence_ = 0;
  std::vector<QueuedPartition> queue_;  // what runs next is at the end
  size_t sorted_ = 0;                   // of them; what came since lies behind
  std::vector<size_t> chosen_;          // kept for its memory
  size_t lowest_taken_ = kNothingTaken;
};

}  // namespace

std::unique_ptr<Scheduler> MakePriorityScheduler(const ScheduleLimits& limits) {
  return MakePriorityScheduler(limits, {});
}

std::unique_ptr<Scheduler> MakePriorityScheduler(const ScheduleLimits& limits,
                                                 LaneClassOptions classes) {
  return MakeQueuedScheduler<PriorityQueue>(limits, std::move(classes));
}

}  // namespace rabit

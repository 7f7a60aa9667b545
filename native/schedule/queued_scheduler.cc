#include "schedule/queued_scheduler.h"

#include <utility>

#include "schedule/partition.h"

namespace rabit {

QueuedScheduler::QueuedScheduler(const ScheduleLimits& limits, LaneClassOptions classes,
                                 std::vector<std::unique_ptr<BucketQueue>> queues)
    : classes_(limits, std::move(classes)), queues_(std::move(queues)) {}

std::vector<Bucket> QueuedScheduler::Advance(const ScheduledTensors& ready,
                                             const BucketCounts& buckets_done) {
  // The credit of the agreement comes first, so that what it frees can be issued by the same call.
  classes_.Return(buckets_done);
  for (size_t i = 0; i < ready.size(); ++i) {
    QueueOf(ready[i]).Add(ready.Share(i), classes_.limits());
  }
  std::vector<Bucket> buckets;
  for (const std::unique_ptr<BucketQueue>& queue : queues_) {
    if (!ready.empty()) queue->EndArrivals();
    IssueFrom(*queue, buckets);
  }
  return buckets;
}

BucketQueue& QueuedScheduler::QueueOf(const ScheduledTensor& tensor) {
  if (queues_.size() == 1) return *queues_[0];
  const int32_t lane_class = classes_.Of(tensor, LargestPartitionBytes(tensor, classes_.limits()));
  return *queues_[static_cast<size_t>(lane_class)];
}

void QueuedScheduler::IssueFrom(BucketQueue& queue, std::vector<Bucket>& buckets) {
  while (!queue.empty()) {
    const BucketQueue::Head head = queue.Choose(classes_.limits());
    std::optional<Bucket> bucket = classes_.TryIssue(*head.first, head.bytes);
    // The head keeps its turn: passing it over for a smaller one would starve large tensors, and
    // rank by rank differently if they saw another credit.
    if (!bucket) break;
    queue.Take(bucket->partitions);
    buckets.push_back(*std::move(bucket));
  }
  queue.EndTurn();
}

size_t QueuedScheduler::backlog() const {
  size_t partitions = 0;
  for (const std::unique_ptr<BucketQueue>& queue : queues_) partitions += queue->size();
  return partitions;
}

void QueuedScheduler::WriteStatistics(JsonWriter& json) const {
  json.Key("lane_classes").BeginObject();
  for (int32_t i = 0; i < classes(); ++i) {
    json.Key(classes_.name(i)).BeginObject();
    classes_.WriteStatistics(i, json);
    json.Member("queued", queues_[static_cast<size_t>(i)]->size()).EndObject();
  }
  json.EndObject();
}

}  // namespace rabit

#include "schedule/scheduler.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include "schedule/fifo_scheduler.h"
#include "schedule/priority_scheduler.h"
#include "testing/sanitizer.h"
#include "testing/test.h"

namespace rabit {
namespace {

using Make = std::unique_ptr<Scheduler> (*)(const ScheduleLimits&);
constexpr Make kSchedulers[] = {&MakeFifoScheduler, &MakePriorityScheduler};

ScheduledTensor Tensor(TensorId id, int64_t count, int32_t priority = 0) {
  ScheduledTensor tensor;
  tensor.id = id;
  tensor.count = count;
  tensor.priority = priority;
  return tensor;
}

ScheduledTensor RandomTensor(std::mt19937& random, TensorId id) {
  ScheduledTensor tensor = Tensor(id, static_cast<int64_t>(random() % 3000), 0);
  if (random() % 8 == 0) tensor.count = 0;
  tensor.priority = static_cast<int32_t>(random() % 5);
  tensor.dtype = random() % 3 == 0 ? DType::kFloat64 : DType::kFloat32;
  constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kAllreduce, Kind::kAllreduce,
                             Kind::kBroadcast, Kind::kAllgather, Kind::kBarrier};
  tensor.kind = kKinds[random() % 6];
  if (tensor.kind == Kind::kAllgather && random() % 2 == 0) tensor.even_parts = 3;
  if (tensor.kind == Kind::kBroadcast) tensor.root = static_cast<int32_t>(random() % 2);
  if (random() % 10 == 0) tensor.joined = {1};
  return tensor;
}

ScheduleLimits RandomLimits(std::mt19937& random) {
  constexpr int64_t kPartition[] = {0, 30, 100, 1024, 4096};
  constexpr int64_t kFusion[] = {0, 64, 4096, 1 << 20};
  constexpr int64_t kCredit[] = {0, 1, 5000, 40000};
  return {kPartition[random() % 5], kFusion[random() % 4], kCredit[random() % 4],
          static_cast<int32_t>(random() % 3 + 1)};
}

int64_t BytesOf(const Bucket& bucket) {
  int64_t count = 0;
  for (const Partition& partition : bucket.partitions) count += partition.count;
  return count * static_cast<int64_t>(SizeOf(bucket.dtype)) * std::max(bucket.even_parts, 1);
}

bool CanBeCut(const Bucket& bucket) {
  return bucket.kind == Kind::kAllreduce || bucket.kind == Kind::kBroadcast ||
         bucket.even_parts > 0;
}

void ExpectEqual(const std::vector<Bucket>& a, const std::vector<Bucket>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].id, b[i].id);
    EXPECT_EQ(a[i].lane, b[i].lane);
    ASSERT_EQ(a[i].partitions.size(), b[i].partitions.size());
    for (size_t j = 0; j < a[i].partitions.size(); ++j) {
      EXPECT_EQ(a[i].partitions[j].tensor, b[i].partitions[j].tensor);
      EXPECT_EQ(a[i].partitions[j].offset, b[i].partitions[j].offset);
    }
  }
}

// One random job: collects every bucket and checks what holds for each on its own.
class RandomJob {
 public:
  RandomJob(Make make, uint32_t seed, bool retunes = false)
      : random_(seed),
        retunes_(retunes),
        limits_(RandomLimits(random_)),
        mine_(make(limits_)),
        twin_(make(limits_)),
        is_strict_(make == kSchedulers[1]) {}

  void Run() {
    for (int round = 0; round < 30; ++round) Advance(round < 20);
    for (int round = 0; round < 100'000 && mine_->backlog() > 0; ++round) Advance(false);
    EXPECT_EQ(mine_->backlog(), 0u);
    CheckComplete();
  }

 private:
  void Advance(bool is_adding) {
    if (retunes_ && random_() % 3 == 0) {
      limits_ = RandomLimits(random_);
      mine_->SetLimits(limits_);
      twin_->SetLimits(limits_);
    }
    std::vector<ScheduledTensor> ready;
    std::vector<ScheduledTensor> twin_ready;
    for (size_t n = is_adding ? random_() % 6 : 0; n > 0; --n) {
      ready.push_back(RandomTensor(random_, static_cast<TensorId>(tensors_.size())));
      tensors_.push_back(ready.back());
      is_finished_.push_back(false);
      twin_ready.push_back(ready.back());
      // The rows of an uneven gather differ between ranks; the buckets must not.
      if (ready.back().kind == Kind::kAllgather && ready.back().even_parts == 0)
        twin_ready.back().count = 17;
    }
    const uint64_t in_flight = issued_.size() - done_;
    done_ += in_flight == 0 ? 0 : is_adding ? random_() % (in_flight + 1) : in_flight;
    const std::vector<Bucket> buckets = mine_->Advance(ready, done_);
    ExpectEqual(buckets, twin_->Advance(twin_ready, done_));
    for (const Bucket& bucket : buckets) Check(bucket);
    if (is_strict_ && !buckets.empty()) CheckOrder(buckets);
  }

  // Nothing that still waits is more urgent than the head of any bucket that was just issued.
  void CheckOrder(const std::vector<Bucket>& buckets) {
    int32_t waiting = INT32_MIN;
    for (size_t id = 0; id < tensors_.size(); ++id)
      if (!is_finished_[id]) waiting = std::max(waiting, tensors_[id].priority);
    for (const Bucket& bucket : buckets)
      EXPECT_GE(tensors_[static_cast<size_t>(bucket.partitions[0].tensor)].priority, waiting);
  }

  void Check(const Bucket& bucket) {
    EXPECT_EQ(bucket.id, issued_.size());
    EXPECT_EQ(bucket.lane, static_cast<int32_t>(bucket.id % static_cast<uint64_t>(limits_.lanes)));
    ASSERT_GT(bucket.partitions.size(), 0u);
    for (const Partition& partition : bucket.partitions) {
      const ScheduledTensor& tensor = tensors_[static_cast<size_t>(partition.tensor)];
      EXPECT_TRUE(tensor.kind == bucket.kind && tensor.dtype == bucket.dtype &&
                  tensor.joined == bucket.joined && tensor.root == bucket.root &&
                  tensor.even_parts == bucket.even_parts);
      if (partition.is_last) is_finished_[static_cast<size_t>(partition.tensor)] = true;
      if (limits_.partition_bytes > 0 && CanBeCut(bucket) && !retunes_) {
        const auto element =
            static_cast<int64_t>(SizeOf(bucket.dtype)) * std::max(bucket.even_parts, 1);
        const int64_t step = std::max<int64_t>(limits_.partition_bytes / element, 1);
        EXPECT_EQ(partition.offset % step, 0);
        EXPECT_LE(partition.count, step);
      }
    }
    if (bucket.partitions.size() > 1) {
      EXPECT_TRUE(CanBeCut(bucket));
      EXPECT_LE(BytesOf(bucket), limits_.fusion_bytes);
    }
    if (limits_.credit_bytes > 0 && CanBeCut(bucket) && issued_.size() > done_) {
      int64_t in_flight = BytesOf(bucket);
      for (size_t i = done_; i < issued_.size(); ++i)
        if (CanBeCut(issued_[i])) in_flight += BytesOf(issued_[i]);
      EXPECT_LE(in_flight, limits_.credit_bytes);
    }
    issued_.push_back(bucket);
  }

  void CheckComplete() {
    std::map<TensorId, std::map<int64_t, Partition>> parts;
    for (const Bucket& bucket : issued_)
      for (const Partition& partition : bucket.partitions)
        EXPECT_TRUE(parts[partition.tensor].emplace(partition.offset, partition).second);
    EXPECT_EQ(parts.size(), tensors_.size());
    for (const auto& [id, each] : parts) {
      int64_t next = 0;
      size_t last_ones = 0;
      for (const auto& [offset, partition] : each) {
        EXPECT_EQ(offset, next);
        next += partition.count;
        last_ones += partition.is_last ? 1 : 0;
      }
      EXPECT_EQ(next, tensors_[static_cast<size_t>(id)].count);
      EXPECT_EQ(last_ones, 1u);
      EXPECT_TRUE(each.rbegin()->second.is_last);
    }
  }

  std::mt19937 random_;
  const bool retunes_;
  ScheduleLimits limits_;
  std::unique_ptr<Scheduler> mine_;
  std::unique_ptr<Scheduler> twin_;
  const bool is_strict_;
  std::vector<ScheduledTensor> tensors_;
  std::vector<bool> is_finished_;
  std::vector<Bucket> issued_;
  uint64_t done_ = 0;
};

TEST(Scheduler, random_jobs_are_complete_disjoint_within_credit_and_equal_on_all_ranks) {
  const auto seeds = static_cast<uint32_t>(testing::SimulatedRounds(60));
  for (Make make : kSchedulers)
    for (uint32_t seed = 0; seed < seeds; ++seed) RandomJob(make, seed).Run();
}

TEST(Scheduler, random_jobs_stay_so_while_the_limits_change) {
  const auto seeds = static_cast<uint32_t>(testing::SimulatedRounds(60));
  for (Make make : kSchedulers)
    for (uint32_t seed = 0; seed < seeds; ++seed) RandomJob(make, seed, true).Run();
}

TEST(Scheduler, a_smaller_window_counts_what_is_in_flight) {
  for (Make make : kSchedulers) {
    auto scheduler = make({.partition_bytes = 40, .fusion_bytes = 0, .credit_bytes = 400});
    EXPECT_EQ(scheduler->Advance({Tensor(0, 200)}, 0).size(), 10u);

    scheduler->SetLimits({.partition_bytes = 8, .fusion_bytes = 0, .credit_bytes = 80});
    EXPECT_EQ(scheduler->Advance({}, 8).size(), 0u);  // 80 of 400 bytes are still in flight
    const auto next = scheduler->Advance({}, 9);

    ASSERT_EQ(next.size(), 1u);  // as it was cut before
    EXPECT_EQ(next[0].partitions[0].count, 10);
    EXPECT_EQ(scheduler->limits().credit_bytes, 80);
  }
}

TEST(Scheduler, without_fusion_a_bucket_is_one_partition) {
  for (Make make : kSchedulers) {
    const auto buckets =
        make({.partition_bytes = 40, .fusion_bytes = 0})->Advance({Tensor(0, 25), Tensor(1, 3)}, 0);
    ASSERT_EQ(buckets.size(), 4u);
    EXPECT_EQ(buckets[2].partitions[0].offset, 20);
    EXPECT_EQ(buckets[2].partitions[0].count, 5);
    EXPECT_TRUE(buckets[2].partitions[0].is_last);
  }
}

TEST(Scheduler, a_bucket_larger_than_the_window_runs_alone) {
  for (Make make : kSchedulers) {
    auto scheduler = make({.partition_bytes = 0, .credit_bytes = 16});
    EXPECT_EQ(scheduler->Advance({Tensor(0, 100), Tensor(1, 1)}, 0).size(), 1u);
    EXPECT_EQ(scheduler->Advance({}, 0).size(), 0u);
    EXPECT_EQ(scheduler->backlog(), 1u);
    EXPECT_EQ(scheduler->Advance({}, 1).size(), 1u);
  }
}

TEST(Scheduler, messages_between_two_ranks_hold_up_nobody) {
  for (Make make : kSchedulers) {
    const auto scheduler = make({1024, 0, 2048, 2});
    std::vector<ScheduledTensor> ready = {Tensor(0, 100'000), Tensor(1, 100'000),
                                          Tensor(2, 100'000), Tensor(3, 256)};
    for (size_t i = 0; i < 3; ++i) ready[i].kind = Kind::kSend;

    const std::vector<Bucket> buckets = scheduler->Advance(ready, 0);

    EXPECT_EQ(buckets.size(), 4u);
    EXPECT_EQ(scheduler->backlog(), 0u);
  }
}

TEST(FifoScheduler, keeps_the_order_of_arrival) {
  const auto buckets = MakeFifoScheduler({.fusion_bytes = 0})
                           ->Advance({Tensor(0, 1, 1), Tensor(1, 1, 9), Tensor(2, 1, 5)}, 0);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(buckets[i].partitions[0].tensor, static_cast<TensorId>(i));
}

TEST(PriorityScheduler, runs_the_most_urgent_first_and_ties_in_order_of_arrival) {
  const auto buckets =
      MakePriorityScheduler({.fusion_bytes = 0})
          ->Advance({Tensor(0, 1, 1), Tensor(1, 1, 9), Tensor(2, 1, 5), Tensor(3, 1, 9)}, 0);
  const TensorId expected[] = {1, 3, 2, 0};
  ASSERT_EQ(buckets.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(buckets[i].partitions[0].tensor, expected[i]);
}

TEST(PriorityScheduler, a_late_urgent_tensor_passes_everything_beyond_the_window) {
  auto scheduler =
      MakePriorityScheduler({.partition_bytes = 4, .fusion_bytes = 0, .credit_bytes = 8});
  EXPECT_EQ(scheduler->Advance({Tensor(0, 100, 0)}, 0).size(), 2u);

  EXPECT_EQ(scheduler->Advance({Tensor(1, 2, 7)}, 0).size(), 0u);
  const auto next = scheduler->Advance({}, 2);

  ASSERT_EQ(next.size(), 2u);
  for (const Bucket& bucket : next) EXPECT_EQ(bucket.partitions[0].tensor, 1);
}

TEST(PriorityScheduler, passes_over_another_dtype_only_at_equal_priority) {
  ScheduledTensor other = Tensor(1, 1, 3);
  other.dtype = DType::kFloat64;
  const auto equal =
      MakePriorityScheduler({})->Advance({Tensor(0, 1, 3), other, Tensor(2, 1, 3)}, 0);
  ASSERT_EQ(equal.size(), 2u);
  EXPECT_EQ(equal[0].partitions.size(), 2u);

  const auto unequal =
      MakePriorityScheduler({})->Advance({Tensor(0, 1, 3), other, Tensor(2, 1, 2)}, 0);
  EXPECT_EQ(unequal.size(), 3u);
}

}  // namespace
}  // namespace rabit

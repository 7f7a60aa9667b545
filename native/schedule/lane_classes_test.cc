// Classes of lanes: a slow backend's buckets hold up nobody else's.
#include "schedule/lane_classes.h"

#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/json_writer.h"
#include "schedule/fifo_scheduler.h"
#include "schedule/priority_scheduler.h"
#include "testing/test.h"

namespace rabit {
namespace {

constexpr BackendId kFast = 0;
constexpr BackendId kSlow = 1;

using MakeWithClasses = std::unique_ptr<Scheduler> (*)(const ScheduleLimits&, LaneClassOptions);
constexpr MakeWithClasses kBoth[] = {&MakeFifoScheduler, &MakePriorityScheduler};

// The backend that the tensor names; of others, small exchanges run in the fast one.
int32_t ClassOf(const ScheduledTensor& tensor, int64_t bytes) {
  if (tensor.backend != kAnyBackend) return tensor.backend;
  return bytes < 1000 ? kFast : kSlow;
}

LaneClassOptions TwoClasses() {
  LaneClassOptions classes;
  classes.names = {"fast", "slow"};
  classes.lanes_started = 3;
  classes.class_of = &ClassOf;
  return classes;
}

ScheduledTensor TensorOf(BackendId backend, TensorId id, int64_t count, int32_t priority = 0) {
  ScheduledTensor tensor;
  tensor.id = id;
  tensor.count = count;
  tensor.backend = backend;
  tensor.priority = priority;
  return tensor;
}

TEST(LaneClasses, each_class_has_numbers_and_lanes_of_its_own) {
  for (const MakeWithClasses make : kBoth) {
    const auto scheduler = make({.fusion_bytes = 0, .lanes = 2}, TwoClasses());
    const auto buckets = scheduler->Advance({TensorOf(kSlow, 0, 1), TensorOf(kFast, 1, 1),
                                             TensorOf(kSlow, 2, 1), TensorOf(kFast, 3, 1)},
                                            {});

    ASSERT_EQ(buckets.size(), 4u);
    const std::vector<TensorId> tensors = {1, 3, 0, 2};
    const std::vector<int32_t> lanes = {0, 1, 3, 4};
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(buckets[i].lane_class, i < 2 ? kFast : kSlow);
      EXPECT_EQ(buckets[i].id, i % 2);
      EXPECT_EQ(buckets[i].lane, lanes[i]);
      EXPECT_EQ(buckets[i].partitions[0].tensor, tensors[i]);
    }
  }
}

TEST(LaneClasses, a_class_without_credit_holds_up_no_other) {
  for (const MakeWithClasses make : kBoth) {
    const auto scheduler = make({.fusion_bytes = 0, .credit_bytes = 40}, TwoClasses());
    BucketCounts done;
    EXPECT_EQ(
        scheduler->Advance({TensorOf(kSlow, 0, 10, 9), TensorOf(kSlow, 1, 10, 9)}, done).size(),
        1u);
    for (TensorId id = 2; id < 50; ++id) {
      const auto buckets = scheduler->Advance({TensorOf(kFast, id, 10)}, done);
      ASSERT_EQ(buckets.size(), 1u);
      EXPECT_EQ(buckets[0].lane_class, kFast);
      ++done[kFast];
    }
    EXPECT_EQ(scheduler->backlog(), 1u);
    ++done[kSlow];
    EXPECT_EQ(scheduler->Advance({}, done).size(), 1u);
  }
}

// A rule of sizes may give what is fused to another backend than what is fused.
TEST(LaneClasses, a_bucket_runs_in_the_class_of_its_own_size) {
  for (const MakeWithClasses make : kBoth) {
    const auto scheduler = make({.fusion_bytes = 4000}, TwoClasses());
    const auto buckets = scheduler->Advance({TensorOf(kAnyBackend, 0, 200),   // 800 bytes
                                             TensorOf(kAnyBackend, 1, 200)},  // 1600 of both
                                            {});
    ASSERT_EQ(buckets.size(), 1u);
    EXPECT_EQ(buckets[0].lane_class, kSlow);
    EXPECT_EQ(buckets[0].lane, 3);

    const auto alone = scheduler->Advance({TensorOf(kAnyBackend, 2, 200)}, {});
    ASSERT_EQ(alone.size(), 1u);
    EXPECT_EQ(alone[0].lane_class, kFast);
  }
}

TEST(LaneClasses, tensors_of_different_backends_are_not_fused) {
  for (const MakeWithClasses make : kBoth) {
    const auto scheduler = make({}, TwoClasses());
    const auto buckets = scheduler->Advance(
        {TensorOf(kFast, 0, 8), TensorOf(kSlow, 1, 8), TensorOf(kFast, 2, 8)}, {});
    ASSERT_EQ(buckets.size(), 2u);
    EXPECT_EQ(buckets[0].partitions.size(), 2u);
  }
}

TEST(LaneClasses, statistics_tell_what_each_has_in_flight_and_waiting) {
  const auto scheduler =
      MakePriorityScheduler({.fusion_bytes = 0, .credit_bytes = 40, .lanes = 2}, TwoClasses());
  (void)scheduler->Advance({TensorOf(kFast, 0, 5), TensorOf(kSlow, 1, 10), TensorOf(kSlow, 2, 10)},
                           {});
  JsonWriter json;
  json.BeginObject();
  scheduler->WriteStatistics(json);
  EXPECT_EQ(json.EndObject().Take(),
            "{\"lane_classes\":{\"fast\":{\"lanes\":2,\"credit_bytes\":40,\"issued\":1,"
            "\"in_flight\":1,\"in_flight_bytes\":20,\"queued\":0},\"slow\":{\"lanes\":2,"
            "\"credit_bytes\":40,\"issued\":1,\"in_flight\":1,\"in_flight_bytes\":40,"
            "\"queued\":1}}}");
}

// Whatever is ready when, and however credit returns: every partition runs once, buckets of a class
// are numbered in a row, and no class has more in flight than its credit.
TEST(LaneClasses, random_arrivals_run_once_within_the_credit_of_each_class) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::minstd_rand random(seed);
    for (const MakeWithClasses make : kBoth) {
      const auto scheduler =
          make({.partition_bytes = 400, .fusion_bytes = 600, .credit_bytes = 1500}, TwoClasses());
      BucketCounts done, issued;
      std::vector<int64_t> bytes[2];  // by class and number
      std::set<std::pair<TensorId, int64_t>> ran;
      size_t expected = 0;
      for (int turn = 0; turn < 200; ++turn) {
        std::vector<ScheduledTensor> ready;
        for (uint32_t i = turn < 100 ? random() % 4 : 0; i > 0; --i) {
          const auto backend = static_cast<BackendId>(random() % 3) - 1;
          const auto count = static_cast<int64_t>(random() % 300 + 1);
          expected += static_cast<size_t>((count + 99) / 100);
          ready.push_back(TensorOf(backend, turn * 4 + static_cast<TensorId>(i), count,
                                   static_cast<int32_t>(random() % 3)));
        }
        for (const Bucket& bucket : scheduler->Advance(std::move(ready), done)) {
          EXPECT_EQ(bucket.id, issued[bucket.lane_class]);
          ++issued[bucket.lane_class];
          int64_t& size = bytes[bucket.lane_class].emplace_back();
          for (const Partition& each : bucket.partitions) {
            size += each.count * 4;
            EXPECT_TRUE(ran.emplace(each.tensor, each.offset).second);
          }
        }
        for (const int32_t each : {kFast, kSlow}) {
          EXPECT_LE(std::accumulate(bytes[each].begin() + static_cast<std::ptrdiff_t>(done[each]),
                                    bytes[each].end(), int64_t{0}),
                    1500);
          if (random() % 2 == 0 || turn >= 100) done[each] = issued[each];
        }
      }
      EXPECT_EQ(scheduler->backlog(), 0u);
      EXPECT_EQ(ran.size(), expected);
    }
  }
}

TEST(LaneClasses, an_ordered_class_uses_its_first_lane_alone) {
  LaneClassOptions classes = TwoClasses();
  classes.ordered_class = kSlow;
  const auto scheduler = MakePriorityScheduler({.fusion_bytes = 0, .lanes = 2}, std::move(classes));
  const auto buckets = scheduler->Advance(
      {TensorOf(kSlow, 0, 1), TensorOf(kFast, 1, 1), TensorOf(kSlow, 2, 1), TensorOf(kFast, 3, 1)},
      {});

  ASSERT_EQ(buckets.size(), 4u);
  const std::vector<int32_t> lanes = {0, 1, 3, 3};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(buckets[i].lane, lanes[i]);
}

}  // namespace
}  // namespace rabit

// Planned collectives against sequential sums, for random trees on 2 to 8 ranks.
#include "collective/planned.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "arithmetic/reduce.h"
#include "collective/scratch.h"
#include "testing/inproc_transport.h"
#include "testing/run_ranks.h"
#include "testing/test.h"

namespace rabit {
namespace {

using Random = std::mt19937;

Deadline Soon() { return After(std::chrono::seconds(60)); }

int Below(Random& random, int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); }

// Of a chain, a star or anything between.
std::string RandomParents(Random& random, int size, int root) {
  std::vector<int> order(static_cast<size_t>(size)), parents(order.size(), -1);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::swap(order[0], *std::find(order.begin(), order.end(), root));
  const int reach = 1 + Below(random, size);
  for (int i = 1; i < size; ++i) {
    const int from = std::max(0, i - reach);
    const auto parent = static_cast<size_t>(from + Below(random, i - from));
    parents[static_cast<size_t>(order[static_cast<size_t>(i)])] = order[parent];
  }
  std::string text;
  for (const int parent : parents) text += " " + std::to_string(parent);
  return text;
}

std::string RandomPlan(Random& random, int size, int trees) {
  std::string text = "size " + std::to_string(size) + "\npipeline_bytes 1000\n";
  const auto head = [&](const char* kind, int root) {
    return std::string(kind) + " " + std::to_string(root) + " " +
           std::to_string(1 + Below(random, 9));
  };
  for (int tree = 0; tree < trees; ++tree) {
    const int root = Below(random, size);
    text += head("allreduce", root) + " up" + RandomParents(random, size, root) + " down" +
            RandomParents(random, size, root) + "\n";
    for (int part = 0; part < size; ++part) {
      for (const char* kind : {"broadcast", "allgather"}) {
        text += head(kind, part) + " down" + RandomParents(random, size, part) + "\n";
      }
      for (const char* kind : {"reduce", "reducescatter"}) {
        text += head(kind, part) + " up" + RandomParents(random, size, part) + "\n";
      }
    }
  }
  return text;
}

std::shared_ptr<const TreePlan> Parsed(const std::string& text, int size) {
  Result<std::shared_ptr<const TreePlan>> plan = TreePlan::Parse(text, size);
  EXPECT_OK(plan);
  return plan.ok() ? *plan : nullptr;
}

// Small whole numbers, of which sums in float32 are exact.
float ValueOf(int rank, int64_t i) { return static_cast<float>((rank + 1) * (i % 101 - 50)); }

float SumOf(int size, int64_t i) {
  float sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += ValueOf(rank, i);
  return sum;
}

std::vector<float> InputOf(int rank, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = ValueOf(rank, i);
  return values;
}

void OnRanks(int size, const std::function<void(const CollectiveCall&)>& body) {
  testing::InprocFabric fabric(size);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(fabric.Connect(rank));
  testing::RunRanks(size, [&](int rank) {
    Scratch scratch;
    body({*transports[static_cast<size_t>(rank)], MakeTag(0, 1), Soon(), scratch});
  });
}

TensorView ViewOf(std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DType::kFloat32, {}};
}

void CheckWhole(const TreePlan& plan, int size, int64_t count, int root) {
  OnRanks(size, [&](const CollectiveCall& call) {
    std::vector<float> values = InputOf(call.rank(), count);
    EXPECT_OK(PlannedAllreduce(call, plan, ViewOf(values), ReduceOp::kSum, {2, 1.0}));
    for (int64_t i = 0; i < count; ++i) {
      if (values[static_cast<size_t>(i)] != SumOf(size, i) / 2) {
        EXPECT_EQ(values[static_cast<size_t>(i)], SumOf(size, i) / 2) << "allreduce " << i;
        break;
      }
    }
  });
  OnRanks(size, [&](const CollectiveCall& call) {
    std::vector<float> values = InputOf(call.rank(), count);
    EXPECT_OK(PlannedReduce(call, plan, ViewOf(values), ReduceOp::kSum, root, {}));
    for (int64_t i = 0; i < count && call.rank() == root; ++i) {
      if (values[static_cast<size_t>(i)] != SumOf(size, i)) {
        EXPECT_EQ(values[static_cast<size_t>(i)], SumOf(size, i)) << "reduce " << i;
        break;
      }
    }
  });
  OnRanks(size, [&](const CollectiveCall& call) {
    std::vector<float> values = InputOf(call.rank(), count);
    const Bytes bytes(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float));
    EXPECT_OK(PlannedBroadcast(call, plan, bytes, root));
    EXPECT_TRUE(values == InputOf(root, count)) << "broadcast";
  });
}

void CheckParts(const TreePlan& plan, int size, const std::vector<int64_t>& counts) {
  const int64_t count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  OnRanks(size, [&](const CollectiveCall& call) {
    const auto me = static_cast<size_t>(call.rank());
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + call.rank(), int64_t{0});
    std::vector<float> values = InputOf(call.rank(), count);
    const std::vector<float> before = values;
    std::vector<float> mine(static_cast<size_t>(counts[me]));
    EXPECT_OK(PlannedReduceScatter(call, plan, ViewOf(values), ViewOf(mine), counts, ReduceOp::kSum,
                                   {}));
    EXPECT_TRUE(values == before) << "the input of a reducescatter has changed";
    std::vector<float> expected;
    for (int64_t i = begin; i < begin + counts[me]; ++i) expected.push_back(SumOf(size, i));
    EXPECT_TRUE(mine == expected) << "reducescatter";
  });
  OnRanks(size, [&](const CollectiveCall& call) {
    std::vector<int64_t> part_bytes;
    for (const int64_t part : counts) part_bytes.push_back(part * static_cast<int64_t>(sizeof(float)));
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + call.rank(), int64_t{0});
    std::vector<float> mine, all(static_cast<size_t>(count));
    for (int64_t i = 0; i < counts[static_cast<size_t>(call.rank())]; ++i) {
      mine.push_back(ValueOf(0, begin + i));
    }
    EXPECT_OK(PlannedAllgather(call, plan, std::as_bytes(std::span(mine)),
                               std::as_writable_bytes(std::span(all)), part_bytes));
    EXPECT_TRUE(all == InputOf(0, count)) << "allgather";
  });
}

TEST(Planned, collectives_along_random_trees_are_right) {
  Random random(7);
  for (int size = 2; size <= 8; ++size) {
    for (const int trees : {1, 3}) {
      const auto plan = Parsed(RandomPlan(random, size, trees), size);
      ASSERT_TRUE(plan != nullptr);
      for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{size} + 1, int64_t{70'001}}) {
        CheckWhole(*plan, size, count, Below(random, size));
        std::vector<int64_t> counts(static_cast<size_t>(size), count / size);
        counts.back() += count % size;
        CheckParts(*plan, size, counts);
      }
      std::vector<int64_t> uneven(static_cast<size_t>(size), 0);
      uneven[0] = 40'003;
      CheckParts(*plan, size, uneven);
    }
  }
}

// Whatever the ranks of a part do in the trees: parts need not hang together.
TEST(Planned, between_parts_of_a_group_a_plan_is_one_of_the_parts) {
  Random random(10);
  for (int size = 2; size <= 8; ++size) {
    for (int parts = 2; parts <= size; ++parts) {
      std::vector<int> part_of(static_cast<size_t>(size));
      for (int rank = 0; rank < size; ++rank) {
        part_of[static_cast<size_t>(rank)] = rank < parts ? rank : Below(random, parts);
      }
      std::shuffle(part_of.begin(), part_of.end(), random);
      const auto plan = Parsed(RandomPlan(random, size, 2), size)->Between(part_of, parts);
      EXPECT_EQ(plan->size(), parts);
      EXPECT_FALSE(plan->Has(Kind::kBroadcast, 0));
      OnRanks(parts, [&](const CollectiveCall& call) {
        std::vector<float> values = InputOf(call.rank(), 10'001);
        EXPECT_OK(PlannedAllreduce(call, *plan, ViewOf(values), ReduceOp::kSum, {}));
        for (int64_t i = 0; i < 10'001; i += 13) {
          EXPECT_EQ(values[static_cast<size_t>(i)], SumOf(parts, i));
        }
      });
    }
  }
}

TEST(Planned, between_hosts_a_plan_has_the_order_of_the_hosts) {
  const auto plan = Parsed("size 5\norder 4 1 0 3 2\n", 5)->Between(std::vector{0, 1, 2, 1, 0}, 3);
  EXPECT_TRUE(plan->order() == (std::vector{0, 1, 2}));
  EXPECT_FALSE(plan->Has(Kind::kAllreduce, 0));
}

TEST(Planned, long_pipelines_are_right) {
  Random random(8);
  for (const int size : {3, 8}) {
    const auto plan = Parsed(RandomPlan(random, size, 2), size);
    ASSERT_TRUE(plan != nullptr);
    CheckWhole(*plan, size, 1'000'003, size - 1);
  }
}

// (((x3 + x2) + ...) in the order of a chain: no other order of these gives the same bits.
TEST(Planned, sums_are_in_the_order_of_the_tree_from_run_to_run) {
  constexpr int64_t kCount = 5000;
  const auto plan = Parsed("size 4\nallreduce 0 1 up -1 0 1 2 down -1 0 0 0\n", 4);
  ASSERT_TRUE(plan != nullptr);
  const auto value = [](int rank, int64_t i) {
    return 1.0f / static_cast<float>(i * 4 + rank + 1) * static_cast<float>(rank % 2 == 0 ? 1e4 : -3);
  };
  for (int run = 0; run < 3; ++run) {
    OnRanks(4, [&](const CollectiveCall& call) {
      std::vector<float> values, expected;
      for (int64_t i = 0; i < kCount; ++i) {
        values.push_back(value(call.rank(), i));
        float sum = value(3, i);
        for (int rank = 2; rank >= 0; --rank) sum = value(rank, i) + sum;
        expected.push_back(sum);
      }
      EXPECT_OK(PlannedAllreduce(call, *plan, ViewOf(values), ReduceOp::kSum, {}));
      EXPECT_TRUE(values == expected);
    });
  }
}

// 2048 + 1 is no float16: a sum that is rounded at every rank would stay 2048.
TEST(Planned, sums_of_float16_are_rounded_once) {
  constexpr int64_t kCount = 10'001;
  Random random(9);
  for (const int size : {2, 5, 8}) {
    const auto plan = Parsed(RandomPlan(random, size, 2), size);
    ASSERT_TRUE(plan != nullptr);
    const auto narrow = [&](float value) {
      const std::vector<float> wide(kCount, value);
      std::vector<uint16_t> found(kCount);
      Convert(DType::kFloat32, reinterpret_cast<const std::byte*>(wide.data()), DType::kFloat16,
              reinterpret_cast<std::byte*>(found.data()), kCount);
      return found;
    };
    OnRanks(size, [&](const CollectiveCall& call) {
      std::vector<uint16_t> values = narrow(call.rank() == 0 ? 2048.0f : 1.0f);
      const TensorView view{values.data(), kCount, DType::kFloat16, {}};
      EXPECT_OK(PlannedAllreduce(call, *plan, view, ReduceOp::kSum, {}));
      EXPECT_TRUE(values == narrow(2048.0f + static_cast<float>(size - 1))) << size << " ranks";
    });
  }
}

// The sum overflows an int32, the mean does not.
TEST(Planned, a_mean_of_integers_is_summed_in_more_bits) {
  constexpr int32_t kLargest = std::numeric_limits<int32_t>::max();
  const auto plan = Parsed("size 3\nallreduce 1 1 up 1 -1 0 down 1 -1 0\n", 3);
  ASSERT_TRUE(plan != nullptr);
  OnRanks(3, [&](const CollectiveCall& call) {
    std::vector<int32_t> values(40'000, kLargest - 3 * call.rank());
    const TensorView view{values.data(), 40'000, DType::kInt32, {}};
    EXPECT_OK(PlannedAllreduce(call, *plan, view, ReduceOp::kAverage, {3, 1.0}));
    EXPECT_TRUE(values == std::vector<int32_t>(40'000, kLargest - 3));
  });
}

TEST(Planned, a_plan_that_is_wrong_is_refused_with_its_line) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "there is no line 'size'"},
      {"size 3\n", "it is of 3 ranks, and the group has 2"},
      {"size 2\nallreduce 0 1 up -1 0\n", "line 2: 6 words"},
      {"size 2\nallreduce 0 0 up -1 0 down -1 0\n", "a wrong weight"},
      {"size 2\nallreduce 2 1 up -1 0 down -1 0\n", "the root is no rank"},
      {"size 2\nallreduce 0 1 up -1 1 down -1 0\n", "rank 1 has a wrong parent"},
      {"size 2\nallreduce 0 1 up 1 0 down -1 0\n", "rank 0 has a wrong parent"},
      {"size 2\nallreduce 0 1 down -1 0 up -1 0\n", "expected 'up'"},
      {"size 2\nallgather 0 1 down -1 0\n", "rank 1 has no tree"},
      {"size 2\nnonsense 1\n", "'nonsense' is unknown"},
      {"size 2\norder 0 0\n", "stands in the order twice"},
      {"size 2\norder 1\n", "the order has 1 ranks"},
  };
  for (const auto& [text, reason] : cases) {
    const Status status = TreePlan::Parse(text, 2).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(status.message().find(reason) != std::string::npos) << status.message();
  }
  const Status circle =
      TreePlan::Parse("size 3\nbroadcast 0 1 down -1 2 1\n", 3).status();
  EXPECT_TRUE(circle.message().find("never reaches the root") != std::string::npos);
}

}  // namespace
}  // namespace rabit

// Ranks whose schedulers differ never combine different tensors: the job ends with kMismatch, which
// names the odd rank and what it exchanges, on every rank and soon.  Every case runs the ranks'
// engines with schedulers that no comparison of settings has seen.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "testing/engine_job.h"

namespace rabit {
namespace {

using testing::Has;
using testing::JobOptions;
using testing::MakeRequest;
using testing::RunRanks;
using testing::TestJob;

constexpr int kMismatchTensors = 10;
constexpr int64_t kCount = 256;

// One rank's tensors t0 … t9 of i + 1; what is done must be right, and something must fail.
void ReduceUntilItFails(Engine& engine, int rank, int size) {
  std::vector<std::vector<float>> values;
  for (int i = 0; i < kMismatchTensors; ++i) {
    values.emplace_back(static_cast<size_t>(kCount), static_cast<float>(i + 1));
  }
  std::vector<Request> requests;
  for (int i = 0; i < kMismatchTensors; ++i) {
    requests.push_back(
        MakeRequest("t" + std::to_string(i), Kind::kAllreduce, values[static_cast<size_t>(i)]));
    requests.back().signature.priority = i;
  }
  std::vector<Handle> handles(requests.size());
  ASSERT_OK(engine.Submit(requests, handles));
  int failed = 0;
  for (int i = 0; i < kMismatchTensors; ++i) {
    const Handle handle = handles[static_cast<size_t>(i)];
    const Status status = engine.Wait(handle, After(std::chrono::seconds(10)));
    if (status.ok()) {
      const auto* const sum = static_cast<const float*>(engine.Output(handle)->view.data);
      EXPECT_EQ(sum[0], static_cast<float>(size * (i + 1))) << "t" << i << " on rank " << rank;
    } else {
      ++failed;
      EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
      EXPECT_EQ(status.culprit(), size - 1) << status.message();
      EXPECT_TRUE(Has(status.message(), "rank " + std::to_string(size - 1))) << status.message();
      EXPECT_TRUE(Has(status.message(), "'t")) << status.message();
      EXPECT_TRUE(Has(status.message(), "Give every rank the same")) << status.message();
    }
    engine.Release(handle);
  }
  EXPECT_GT(failed, 0) << "rank " << rank;
}

void ExpectMismatch(JobOptions options, int size) {
  options.odd_rank = size - 1;
  options.odd_limits.lanes = std::max(options.odd_limits.lanes, 1);
  TestJob job(size, std::move(options));
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < size; ++rank) engines.push_back(job.Start(rank));
  const auto started = std::chrono::steady_clock::now();
  RunRanks(size,
           [&](int rank) { ReduceUntilItFails(*engines[static_cast<size_t>(rank)], rank, size); });
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(8));
}

TEST(ScheduleMismatch, another_order) {
  for (const int size : {2, 3}) {
    JobOptions options;
    options.is_odd_fifo = true;
    ExpectMismatch(options, size);
  }
}

TEST(ScheduleMismatch, another_order_below_a_rank_of_a_tree) {
  JobOptions options;
  options.is_odd_fifo = true;
  options.fan_out = 2;
  ExpectMismatch(options, 5);
}

TEST(ScheduleMismatch, another_order_without_fusion) {
  JobOptions options;
  options.is_odd_fifo = true;
  options.limits.fusion_bytes = options.odd_limits.fusion_bytes = 0;
  ExpectMismatch(options, 3);
}

TEST(ScheduleMismatch, other_fusion) {
  JobOptions options;
  options.odd_limits.fusion_bytes = 0;
  ExpectMismatch(options, 3);
}

TEST(ScheduleMismatch, other_partitions) {
  JobOptions options;
  options.odd_limits.partition_bytes = kCount;
  ExpectMismatch(options, 3);
}

TEST(ScheduleMismatch, other_credit) {
  JobOptions options;
  options.controller.announces_credit = false;
  options.limits.fusion_bytes = options.odd_limits.fusion_bytes = 0;
  options.odd_limits.credit_bytes = kCount * 4;
  ExpectMismatch(options, 3);
}

TEST(ScheduleMismatch, other_lanes) {
  JobOptions options;
  options.engine.lanes = 2;
  options.odd_limits.lanes = 1;
  options.limits.fusion_bytes = options.odd_limits.fusion_bytes = 0;
  ExpectMismatch(options, 3);
}

TEST(ScheduleMismatch, another_algorithm) {
  JobOptions options;
  options.odd_rank = -1;
  options.algorithms = [](int rank) { return rank == 2 ? "ring" : "direct"; };
  ExpectMismatch(options, 3);
}

// Ordered calls wait for each other without a negotiation; a difference is named with its values
// long before the deadline.
TEST(ScheduleMismatch, ordered_calls_that_differ) {
  constexpr int kSize = 3;
  TestJob job(kSize);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < kSize; ++rank) engines.push_back(job.Start(rank));
  const auto started = std::chrono::steady_clock::now();
  RunRanks(kSize, [&](int rank) {
    const int64_t count = rank == 1 ? 6 : 4;
    std::vector<float> values(static_cast<size_t>(count), 1.0f);
    OrderedCall call;
    call.input = call.output = TensorView{values.data(), count, DType::kFloat32, {}};
    const Status status =
        engines[static_cast<size_t>(rank)]->RunOrdered(call, After(std::chrono::seconds(60)));
    EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
    EXPECT_EQ(status.culprit(), 1) << status.message();
    EXPECT_TRUE(Has(status.message(), "6 elements of float32 on rank 1")) << status.message();
    EXPECT_TRUE(Has(status.message(), "4 elements of float32 on rank 0")) << status.message();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(10));
}

}  // namespace
}  // namespace rabit

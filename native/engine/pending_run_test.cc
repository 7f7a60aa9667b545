// Lanes over backends that do not block; ranks are threads.
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "testing/engine_job.h"
#include "testing/pending_backend.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::JobOptions;
using testing::MakeRequest;
using testing::PendingBackend;
using testing::Soon;
using testing::TestJob;

JobOptions PendingJob() {
  JobOptions options;
  options.wrap_backend = [](int, std::unique_ptr<Backend> inner) {
    return std::make_unique<PendingBackend>(std::move(inner));
  };
  return options;
}

Request SumOf(std::string name, std::vector<float>& values) {
  Request request = MakeRequest(std::move(name), Kind::kAllreduce, values);
  request.signature.postscale = 0.5;
  request.output = request.input;
  return request;
}

// Sizes that are fused, cut and left alone.
TEST(PendingRun, sums_of_many_tensors_are_right_on_lanes_that_begin_several) {
  for (int size : {1, 2, 3}) {
    JobOptions options = PendingJob();
    options.limits.partition_bytes = 4096;
    options.limits.fusion_bytes = 2048;
    TestJob(size, std::move(options)).Run([&](Engine& engine, int rank) {
      std::minstd_rand random(5);
      std::vector<std::vector<float>> tensors(40);
      std::vector<Request> requests;
      for (size_t i = 0; i < tensors.size(); ++i) {
        tensors[i].assign(1 + random() % 5000, static_cast<float>(rank + 1) * 2.0f);
        requests.push_back(SumOf("t" + std::to_string(i), tensors[i]));
      }
      std::vector<Handle> handles(requests.size());
      ASSERT_OK(engine.Submit(requests, handles));
      for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
      const auto sum = static_cast<float>(size * (size + 1) / 2);
      for (const std::vector<float>& each : tensors) {
        EXPECT_EQ(each, std::vector<float>(each.size(), sum));
      }
    });
  }
}

TEST(PendingRun, kinds_with_parts_give_what_a_blocking_backend_gives) {
  TestJob(3, PendingJob()).Run([](Engine& engine, int rank) {
    std::vector<float> mine(static_cast<size_t>(rank + 1), static_cast<float>(rank));
    const std::vector<float> all =
        testing::RunOne<float>(engine, MakeRequest("g", Kind::kAllgather, mine));
    EXPECT_EQ(all, (std::vector<float>{0, 1, 1, 2, 2, 2}));

    std::vector<float> rows(6, 1.0f);
    Request scatter = MakeRequest("r", Kind::kReduceScatter, rows);
    scatter.signature.op = ReduceOp::kAverage;
    EXPECT_EQ(testing::RunOne<float>(engine, scatter), std::vector<float>(2, 1.0f));

    std::vector<float> sent(3, static_cast<float>(rank));
    Request alltoall = MakeRequest("a", Kind::kAlltoall, sent);
    alltoall.signature.splits = {1, 1, 1};
    EXPECT_EQ(testing::RunOne<float>(engine, alltoall), (std::vector<float>{0, 1, 2}));
  });
}

TEST(PendingRun, a_lane_begins_the_next_bucket_while_one_is_pending) {
  std::atomic<PendingBackend*> first{nullptr};
  std::atomic<bool> were_two{false};
  JobOptions options;
  options.engine.lanes = 1;
  options.limits.fusion_bytes = 0;
  options.wrap_backend = [&](int rank, std::unique_ptr<Backend> inner) {
    auto backend = std::make_unique<PendingBackend>(std::move(inner), [&, rank] {
      if (rank == 0 && first.load()->WaitCalls(2, Soon())) were_two.store(true);
    });
    if (rank == 0) first.store(backend.get());
    return backend;
  };
  TestJob(2, std::move(options)).Run([](Engine& engine, int) {
    std::vector<float> a(100, 1.0f), b(100, 2.0f);
    std::vector<Request> requests = {SumOf("a", a), SumOf("b", b)};
    Handle handles[2];
    ASSERT_OK(engine.Submit(requests, handles));
    for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
    EXPECT_EQ(a, std::vector<float>(100, 1.0f));
    EXPECT_EQ(b, std::vector<float>(100, 2.0f));
  });
  EXPECT_TRUE(were_two.load());
}

TEST(PendingRun, a_rank_that_ends_fails_what_is_pending_elsewhere_by_name) {
  TestJob job(2, PendingJob());
  std::unique_ptr<Engine> engines[] = {job.Start(0), job.Start(1)};
  testing::RunRanks(2, [&](int rank) {
    Engine& engine = *engines[rank];
    if (rank == 1) return engine.Abort("a test", Soon());
    std::vector<float> values(10);
    Request request = SumOf("lost", values);
    Handle handle;
    Status status = engine.Submit({&request, 1}, {&handle, 1});
    if (status.ok()) status = engine.Wait(handle, Soon());
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_EQ(status.culprit(), 1);
  });
}

}  // namespace
}  // namespace rabit

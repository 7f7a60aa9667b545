// Tensors that NCCL exchanges where they are, over the emulation; ranks are threads.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "testing/device_job.h"
#include "testing/device_tensor.h"
#include "testing/emulated_nccl.h"
#include "testing/engine_job.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::DeviceJob;
using testing::DeviceTensor;
using testing::DeviceWay;
using testing::EmulatedTrouble;
using testing::Has;
using testing::JobOptions;
using testing::MakeRequest;
using testing::nccl_emulation;
using testing::RunOn;
using testing::Soon;
using Floats = std::vector<float>;

TEST(NcclRun, what_nccl_has_not_is_staged_beside_what_it_has) {
  EmulatedTrouble trouble(8, 100);
  DeviceJob(DeviceWay::kNccl, 2).Run([](Engine& engine, int rank) {
    const DeviceTensor most(rank, Floats(100, static_cast<float>(rank)));
    Request max = most.InPlace(Kind::kAllreduce, "max");
    max.signature.op = ReduceOp::kMax;
    const DeviceTensor sum(rank, Floats(100, 1.0f));
    std::vector<float> here(10, 1.0f);
    std::vector<Request> requests;
    requests.push_back(std::move(max));
    requests.push_back(sum.InPlace(Kind::kAllreduce, "sum"));
    requests.push_back(MakeRequest("host", Kind::kAllreduce, here));
    std::vector<Handle> handles(requests.size());
    ASSERT_OK(engine.Submit(requests, handles));
    for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
    EXPECT_EQ(most.Read(), Floats(100, 1.0f));
    EXPECT_EQ(sum.Read(), Floats(100, 2.0f));
    for (const Handle handle : handles) engine.Release(handle);
  });
}

TEST(NcclRun, groups_have_communicators_of_their_own) {
  EmulatedTrouble trouble(10, 100);
  DeviceJob(DeviceWay::kNccl, 3).Run([](Engine& engine, int rank) {
    const std::vector<int> pair = {0, 2};
    Result<GroupId> group = engine.AddGroup(pair, Soon());
    ASSERT_OK(group);
    for (int round = 0; round < 3; ++round) {
      const DeviceTensor all(rank, Floats(50, 1.0f));
      const DeviceTensor some(rank, Floats(50, 1.0f));
      std::vector<Request> requests;
      requests.push_back(all.InPlace(Kind::kAllreduce, "all"));
      if (rank != 1) {
        requests.push_back(some.InPlace(Kind::kAllreduce, "some"));
        requests[1].signature.group = *group;
      }
      std::vector<Handle> handles(requests.size());
      ASSERT_OK(engine.Submit(requests, handles));
      for (const Handle handle : handles) {
        EXPECT_OK(engine.Wait(handle, Soon()));
        engine.Release(handle);
      }
      EXPECT_EQ(all.Read(), Floats(50, 3.0f));
      EXPECT_EQ(some.Read(), Floats(50, rank != 1 ? 2.0f : 1.0f));
    }
  });
}

// Communicators hold memory of the device: a group that is removed gives back what it had.
TEST(NcclRun, a_group_that_is_removed_leaves_no_communicator) {
  EmulatedTrouble trouble(13, 100);
  DeviceJob(DeviceWay::kNccl, 2).Run([](Engine& engine, int rank) {
    for (int round = 0; round < 20; ++round) {
      const Result<GroupId> group = engine.AddGroup(std::vector<int>{0, 1}, Soon());
      ASSERT_OK(group);
      const DeviceTensor tensor(rank, Floats(50, 1.0f));
      Request request = tensor.InPlace(Kind::kAllreduce, "x");
      request.signature.group = *group;
      EXPECT_OK(RunOn(engine, std::move(request)));
      EXPECT_EQ(tensor.Read(), Floats(50, 2.0f));
      EXPECT_OK(engine.RemoveGroup(*group, Soon()));
    }
    const DeviceTensor tensor(rank, Floats(50, 1.0f));
    EXPECT_OK(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "all")));
    // A lane may still be at the end of what the last group has run.
    const Deadline deadline = Soon();
    const auto is_left = [&] { return !Has(engine.StatisticsJson(), "\"communicators\":1"); };
    while (is_left() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_FALSE(is_left()) << engine.StatisticsJson();
  });
}

// A kernel that waits for a rank that has ended does not go on for ever.
TEST(NcclRun, a_rank_that_ends_is_named_and_no_kernel_hangs) {
  EmulatedTrouble trouble(11);
  DeviceJob job(DeviceWay::kNccl, 2);
  std::vector<std::unique_ptr<Engine>> engines;
  for (const int rank : {0, 1}) engines.push_back(job.Start(rank));
  testing::RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    const DeviceTensor tensor(rank, Floats(100, 1.0f));
    EXPECT_OK(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "first")));
    if (rank == 1) nccl_emulation().rabit_emulated_nccl_break(1, nccl::kInternalError);
  });
  testing::RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    const DeviceTensor tensor(rank, Floats(100, 1.0f));
    // One of both kernels does not end, and so neither does.
    const Status status = RunOn(engine, tensor.InPlace(Kind::kAllreduce, "second"));
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(Has(status.message(), "'second'")) << status.message();
  });
  engines.clear();
}

TEST(NcclRun, a_collective_that_does_not_end_in_time_is_given_up) {
  EmulatedTrouble trouble(12);
  JobOptions options;
  options.engine.operation_timeout_ms = 200;
  DeviceJob job(DeviceWay::kNccl, 2, std::move(options));
  std::vector<std::unique_ptr<Engine>> engines;
  for (const int rank : {0, 1}) engines.push_back(job.Start(rank));
  nccl_emulation().rabit_emulated_nccl_break(0, nccl::kInProgress);  // it never ends
  testing::RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    const DeviceTensor tensor(rank, Floats(100, 1.0f));
    const Status status = RunOn(engine, tensor.InPlace(Kind::kAllreduce, "late"));
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(Has(status.message(), "'late'")) << status.message();
  });
  engines.clear();
}

}  // namespace
}  // namespace rabit

// Tensors that NCCL exchanges where they are, over the emulation; ranks are threads.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "testing/device_tensor.h"
#include "testing/emulated_nccl.h"
#include "testing/engine_job.h"
#include "testing/memory_store.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::DeviceTensor;
using testing::EmulatedTrouble;
using testing::emulation;
using testing::Has;
using testing::JobOptions;
using testing::MakeRequest;
using testing::MemoryStore;
using testing::nccl_emulation;
using testing::OpenEmulatedNccl;
using testing::RunOn;
using testing::Soon;
using testing::TestJob;
using Floats = std::vector<float>;

// Rank r is on device r, of as many as there are ranks.
class NcclJob {
 public:
  explicit NcclJob(int size, JobOptions options = {}) {
    emulation().rabit_emulated_devices(std::max(size, 2));
    auto store = std::make_shared<MemoryStore>();
    options.ground = store;
    options.open_driver = [] { return LoadCudaDriver(RABIT_TEST_CUDA); };
    options.has_nccl = true;
    options.more_backends = [store](int rank) {
      std::vector<std::unique_ptr<Backend>> backends;
      backends.push_back(std::make_unique<NcclBackend>(OpenEmulatedNccl(), store.get(),
                                                       NcclOptions{.rank = rank, .key = "job"}));
      return backends;
    };
    job_ = std::make_unique<TestJob>(size, std::move(options));
  }
  ~NcclJob() {
    EXPECT_EQ(nccl_emulation().counts().communicators, before_.communicators);
    EXPECT_EQ(nccl_emulation().counts().violations, before_.violations);
    EXPECT_EQ(emulation().counts().violations, violations_);
    EXPECT_EQ(emulation().counts().memory, memory_);
  }

  // Fails what ran on the host although it should not have.
  void Run(const std::function<void(Engine&, int)>& body, bool is_pure = true) {
    const int64_t copies = emulation().rabit_emulated_calls("cuMemcpyDtoHAsync_v2");
    job_->Run(body);
    job_.reset();
    const int64_t made = emulation().rabit_emulated_calls("cuMemcpyDtoHAsync_v2") - copies;
    if (is_pure) {
      EXPECT_EQ(made, 0);
    }
  }
  TestJob& job() { return *job_; }

 private:
  const emulated_nccl::Counts before_ = nccl_emulation().counts();
  const int64_t violations_ = emulation().counts().violations;
  const int64_t memory_ = emulation().counts().memory;
  std::unique_ptr<TestJob> job_;
};

// Cut, fused and left alone; averaged, scaled, and with priorities.
TEST(NcclRun, sums_of_many_tensors_are_right_and_stay_on_the_device) {
  for (const uint64_t seed : {1, 2, 3}) {
    EmulatedTrouble trouble(seed, 200);
    const int size = static_cast<int>(seed);
    JobOptions options;
    options.limits.partition_bytes = 4096;
    options.limits.fusion_bytes = 2048;
    NcclJob(size, std::move(options)).Run([&](Engine& engine, int rank) {
      std::vector<std::unique_ptr<DeviceTensor>> tensors;
      std::vector<Request> requests;
      for (size_t i = 0; i < 24; ++i) {
        const Floats values(1 + 173 * i, static_cast<float>(rank + 1));
        tensors.push_back(std::make_unique<DeviceTensor>(rank, values));
        requests.push_back(tensors[i]->InPlace(Kind::kAllreduce, "t" + std::to_string(i)));
        requests[i].signature.prescale = 2.0;
        requests[i].signature.postscale = 0.25;
        requests[i].signature.priority = static_cast<int32_t>(i % 5);
      }
      std::vector<Handle> handles(requests.size());
      ASSERT_OK(engine.Submit(requests, handles));
      for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
      for (const auto& each : tensors) {
        const Floats seen = each->Read();
        EXPECT_EQ(seen, Floats(seen.size(), static_cast<float>(size * (size + 1)) / 4.0f));
      }
      if (rank == 0) {
        EXPECT_TRUE(Has(engine.StatisticsJson(), "\"nccl\""));
      }
    });
  }
}

TEST(NcclRun, a_mean_in_another_tensor_leaves_the_input_as_it_is) {
  EmulatedTrouble trouble(4, 200);
  NcclJob(2).Run([](Engine& engine, int rank) {
    const DeviceTensor in(rank, Floats(1000, static_cast<float>(rank)));
    const DeviceTensor out(rank, Floats(1000));
    Request request = in.To(out, Kind::kAllreduce, "mean");
    request.signature.op = ReduceOp::kAverage;
    EXPECT_OK(RunOn(engine, std::move(request)));
    EXPECT_EQ(out.Read(), Floats(1000, 0.5f));
    EXPECT_EQ(in.Read(), Floats(1000, static_cast<float>(rank)));
  });
}

TEST(NcclRun, rooted_kinds_touch_the_outputs_that_they_should) {
  EmulatedTrouble trouble(5, 200);
  NcclJob(3).Run([](Engine& engine, int rank) {
    const auto mine = static_cast<float>(rank + 1);
    const DeviceTensor sent(rank, Floats(5000, mine));
    Request broadcast = sent.InPlace(Kind::kBroadcast, "b");
    broadcast.signature.root = 1;
    EXPECT_OK(RunOn(engine, std::move(broadcast)));
    EXPECT_EQ(sent.Read(), Floats(5000, 2.0f));

    const DeviceTensor part(rank, Floats(10, mine));
    const DeviceTensor sum(rank, Floats(10));
    Request reduce = part.To(sum, Kind::kReduce, "r");
    reduce.signature.root = 2;
    EXPECT_OK(RunOn(engine, std::move(reduce)));
    EXPECT_EQ(sum.Read(), Floats(10, rank == 2 ? 6.0f : 0.0f));
  });
}

TEST(NcclRun, kinds_of_parts_fill_outputs_on_the_device) {
  EmulatedTrouble trouble(6, 200);
  NcclJob(2).Run([](Engine& engine, int rank) {
    const auto mine = static_cast<float>(rank + 1);
    const DeviceTensor part(rank, Floats(6, mine));
    const DeviceTensor all(rank, Floats(12));
    EXPECT_OK(RunOn(engine, part.To(all, Kind::kAllgather, "g")));
    Floats joined(6, 1.0f);
    joined.resize(12, 2.0f);
    EXPECT_EQ(all.Read(), joined);

    const DeviceTensor whole(rank, Floats(12, mine));
    const DeviceTensor own(rank, Floats(6));
    EXPECT_OK(RunOn(engine, whole.To(own, Kind::kReduceScatter, "s")));
    EXPECT_EQ(own.Read(), Floats(6, 3.0f));
    EXPECT_EQ(whole.Read(), Floats(12, mine));

    const DeviceTensor crossed(rank, Floats(12));
    EXPECT_OK(RunOn(engine, whole.To(crossed, Kind::kAlltoall, "a")));
    EXPECT_EQ(crossed.Read(), joined);
  });
}

// What the engine allocates is memory of the host.
TEST(NcclRun, results_without_an_output_come_to_the_host) {
  EmulatedTrouble trouble(7, 200);
  NcclJob(2).Run(
      [](Engine& engine, int rank) {
        const auto rows = static_cast<size_t>(rank + 1);
        const DeviceTensor part(rank, Floats(rows, static_cast<float>(rank)));
        EXPECT_EQ(testing::RunOne<float>(engine, part.As(Kind::kAllgather, "g")),
                  (Floats{0.0f, 1.0f, 1.0f}));
        const DeviceTensor whole(rank, Floats(5, static_cast<float>(rank + 1)));
        EXPECT_EQ(testing::RunOne<float>(engine, whole.As(Kind::kReduceScatter, "s")),
                  Floats(rank == 0 ? 3 : 2, 3.0f));
        EXPECT_EQ(testing::RunOne<float>(engine, whole.As(Kind::kAllreduce, "r")), Floats(5, 3.0f));
        Request uneven = whole.As(Kind::kAlltoall, "a");
        uneven.splits = uneven.signature.splits = {1, 4};
        EXPECT_EQ(testing::RunOne<float>(engine, std::move(uneven)),
                  rank == 0 ? (Floats{1.0f, 2.0f})
                            : (Floats{1.0f, 1.0f, 1.0f, 1.0f, 2.0f, 2.0f, 2.0f, 2.0f}));
        Request root = whole.As(Kind::kBroadcast, "b");
        root.signature.root = 1;
        EXPECT_EQ(testing::RunOne<float>(engine, std::move(root)), Floats(5, 2.0f));
      },
      false);
}

TEST(NcclRun, what_nccl_has_not_is_staged_beside_what_it_has) {
  EmulatedTrouble trouble(8, 100);
  NcclJob(2).Run(
      [](Engine& engine, int rank) {
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
      },
      false);
}

TEST(NcclRun, a_rank_that_has_joined_adds_nothing) {
  EmulatedTrouble trouble(9, 100);
  NcclJob(2).Run([](Engine& engine, int rank) {
    const DeviceTensor tensor(rank, Floats(100, 2.0f));
    EXPECT_OK(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "both")));
    EXPECT_EQ(tensor.Read(), Floats(100, 4.0f));
    if (rank == 0) {
      EXPECT_OK(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "one")));
      EXPECT_EQ(tensor.Read(), Floats(100, 4.0f));
    }
    std::vector<float> nothing;
    (void)testing::RunOne<float>(engine, MakeRequest("join", Kind::kJoin, nothing));
  });
}

TEST(NcclRun, groups_have_communicators_of_their_own) {
  EmulatedTrouble trouble(10, 100);
  NcclJob(3).Run([](Engine& engine, int rank) {
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

// A kernel that waits for a rank that has ended does not go on for ever.
TEST(NcclRun, a_rank_that_ends_is_named_and_no_kernel_hangs) {
  EmulatedTrouble trouble(11);
  NcclJob job(2);
  std::vector<std::unique_ptr<Engine>> engines;
  for (const int rank : {0, 1}) engines.push_back(job.job().Start(rank));
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
  NcclJob job(2, std::move(options));
  std::vector<std::unique_ptr<Engine>> engines;
  for (const int rank : {0, 1}) engines.push_back(job.job().Start(rank));
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

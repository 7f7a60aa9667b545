// Tensors on a device, over an emulated driver; ranks are threads.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "testing/device_tensor.h"
#include "testing/emulated_driver.h"
#include "testing/engine_job.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::DeviceTensor;
using testing::EmulatedTrouble;
using testing::emulation;
using testing::Has;
using testing::JobOptions;
using testing::MakeRequest;
using testing::OpenEmulatedDriver;
using testing::RunOn;
using testing::Soon;
using testing::TestJob;
using Floats = std::vector<float>;

JobOptions StagedJob() {
  JobOptions options;
  options.open_driver = [] { return LoadCudaDriver(RABIT_TEST_CUDA); };
  return options;
}

// The engine has no memory on the device for what the caller gave none for.
TEST(Staging, an_output_that_the_engine_allocates_is_in_the_memory_of_the_host) {
  TestJob(2, StagedJob()).Run([](Engine& engine, int rank) {
    const DeviceTensor mine(0, Floats(static_cast<size_t>(rank + 1), static_cast<float>(rank)));
    HandleOutput output;
    const Floats all =
        testing::RunOne<float>(engine, mine.As(Kind::kAllgather, "g"), nullptr, &output);
    EXPECT_EQ(all, (Floats{0, 1, 1}));
    EXPECT_EQ(output.view.device, Device{});
  });
}

TEST(Staging, an_output_of_the_caller_may_be_in_the_memory_of_the_host) {
  TestJob(2, StagedJob()).Run([](Engine& engine, int rank) {
    const auto mine = static_cast<float>(rank + 1);
    const DeviceTensor values(0, {mine, mine, mine, mine});
    for (const Kind kind : {Kind::kAllreduce, Kind::kAllgather, Kind::kAlltoall}) {
      Floats host(kind == Kind::kAllgather ? 8 : 4);
      Request request = values.As(kind, std::string(Name(kind)));
      request.output = {host.data(), static_cast<int64_t>(host.size()), DType::kFloat32, {}};
      EXPECT_OK(RunOn(engine, std::move(request)));
      EXPECT_EQ(host, kind == Kind::kAllreduce   ? Floats(4, 3.0f)
                      : kind == Kind::kAllgather ? (Floats{1, 1, 1, 1, 2, 2, 2, 2})
                                                 : (Floats{1, 1, 2, 2}));
    }
    EXPECT_EQ(values.Read(), Floats(4, mine));
  });
}

TEST(Staging, a_codec_encodes_images_and_keeps_its_residual_on_the_host) {
  TestJob(2, StagedJob()).Run([](Engine& engine, int rank) {
    const DeviceTensor values(0, Floats(3000, rank == 0 ? 1.0f : 3.0f));
    Request request = values.InPlace(Kind::kAllreduce, "c");
    request.signature.codec = "fp16";
    EXPECT_OK(RunOn(engine, std::move(request)));
    EXPECT_EQ(values.Read(), Floats(3000, 4.0f));
  });
}

// A kernel that waits holds its own tensor back, and nothing else.
TEST(Staging, what_is_not_computed_yet_is_not_announced) {
  std::atomic<bool> may_end{false};
  TestJob(2, StagedJob()).Run([&](Engine& engine, int rank) {
    if (rank == 0) {
      emulation().rabit_emulated_launch(
          0, nullptr, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); },
          &may_end);
    }
    const DeviceTensor late(rank, Floats(10, 1.0f));
    Request request = late.InPlace(Kind::kAllreduce, "late");
    Handle handle;
    ASSERT_OK(engine.Submit({&request, 1}, {&handle, 1}));

    Floats host(10, 2.0f);
    EXPECT_EQ(testing::RunOne<float>(engine, MakeRequest("host", Kind::kAllreduce, host)),
              Floats(10, 4.0f));
    const Result<bool> is_done = engine.IsDone(handle);
    ASSERT_OK(is_done);
    EXPECT_FALSE(*is_done);
    std::vector<float> none(1);
    (void)testing::RunOne<float>(engine, MakeRequest("looked", Kind::kAllreduce, none));

    if (rank == 0) {
      may_end.store(true);
      may_end.notify_all();
    }
    EXPECT_OK(engine.Wait(handle, Soon()));
    EXPECT_EQ(late.Read(), Floats(10, 2.0f));
  });
}

// One batch of two streams is ready when both are; a late stream holds back nothing of another one.
TEST(Staging, each_stream_is_waited_for_by_itself) {
  std::atomic<bool> may_end{false};
  TestJob(1, StagedJob()).Run([&](Engine& engine, int) {
    const std::shared_ptr<DeviceDriver> driver = OpenEmulatedDriver();
    const DeviceStream side = std::move(*MakeStream(driver, 0));
    emulation().rabit_emulated_launch(
        0, static_cast<cuda::Stream>(side.get()),
        [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &may_end);
    const DeviceTensor late(0, Floats(10, 1.0f), side.get());
    const DeviceTensor soon(0, Floats(10, 2.0f));
    Request alone = late.InPlace(Kind::kAllreduce, "alone");
    Handle held_back;
    ASSERT_OK(engine.Submit({&alone, 1}, {&held_back, 1}));
    EXPECT_OK(RunOn(engine, soon.InPlace(Kind::kAllreduce, "after")));

    std::vector<Request> requests = {soon.InPlace(Kind::kAllreduce, "soon"),
                                     late.InPlace(Kind::kAllreduce, "late")};
    std::vector<Handle> handles(2);
    ASSERT_OK(engine.Submit(requests, handles));
    EXPECT_EQ(engine.Wait(handles[1], After(std::chrono::milliseconds(20))).code(),
              Code::kTimedOut);
    may_end.store(true);
    may_end.notify_all();
    for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
    EXPECT_OK(engine.Wait(held_back, Soon()));
    EXPECT_EQ(late.Read(), Floats(10, 1.0f));
  });
}

TEST(Staging, a_graph_that_is_captured_is_refused_on_every_rank) {
  EmulatedTrouble trouble(9);
  TestJob(2, StagedJob()).Run([](Engine& engine, int rank) {
    const DeviceTensor tensor(0, Floats(4));
    emulation().rabit_emulated_capture(1);
    const Status status = RunOn(engine, tensor.InPlace(Kind::kAllreduce, "x"));
    EXPECT_EQ(status.code(), Code::kUnsupported) << status;
    EXPECT_TRUE(Has(status.message(), "'x' on rank " + std::to_string(rank))) << status;
    EXPECT_TRUE(Has(status.message(), "outside of the capture")) << status;
  });
}

TEST(Staging, ranks_with_other_kinds_of_memory_are_named) {
  TestJob(2, StagedJob()).Run([](Engine& engine, int rank) {
    const DeviceTensor there(0, Floats(4));
    Floats here(4);
    const Status status = RunOn(engine, rank == 0 ? MakeRequest("x", Kind::kAllreduce, here)
                                                  : there.InPlace(Kind::kAllreduce, "x"));
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_TRUE(Has(status.message(), "same kind of device")) << status;
  });
}

TEST(Staging, what_cannot_work_is_refused_with_advice) {
  TestJob(1, StagedJob()).Run([](Engine& engine, int) {
    const DeviceTensor tensor(0, Floats(4));
    Floats host(4);
    Request apart = MakeRequest("x", Kind::kAllreduce, host);
    apart.output = tensor.view();
    EXPECT_TRUE(
        Has(RunOn(engine, apart).message(), "input is on the CPU and the output on cuda:0"));

    Request beyond = tensor.InPlace(Kind::kAllreduce, "x");
    beyond.device.index = beyond.input.device.index = beyond.output.device.index = 9;
    EXPECT_TRUE(Has(RunOn(engine, beyond).message(), "on cuda:9, and the driver has 2"));
  });
  TestJob(1).Run([](Engine& engine, int) {
    const DeviceTensor tensor(0, Floats(4));
    const Status status = RunOn(engine, tensor.InPlace(Kind::kAllreduce, "x"));
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_TRUE(Has(status.message(), "'x' on rank 0: the tensor is on cuda:0, which cannot"));
  });
}

// On whichever call the driver fails: every rank ends with the reason, and none hangs.
TEST(Staging, a_driver_that_fails_ends_the_operation_on_every_rank) {
  for (const char* function :
       {"cuStreamIsCapturing", "cuEventCreate", "cuEventRecord", "cuMemHostAlloc", "cuStreamCreate",
        "cuMemcpyDtoHAsync_v2", "cuEventQuery", "copy"}) {
    EmulatedTrouble trouble(6);
    TestJob job(2, StagedJob());
    std::unique_ptr<Engine> engines[] = {job.Start(0), job.Start(1)};
    const DeviceTensor tensors[] = {DeviceTensor(0, Floats(100)), DeviceTensor(0, Floats(100))};
    emulation().rabit_emulated_finish(0, nullptr);
    trouble.Fail(function, 0, cuda::kOutOfMemory);
    testing::RunRanks(2, [&](int rank) {
      Request request = tensors[rank].InPlace(Kind::kAllreduce, "broken");
      Handle handle;
      Status status = engines[rank]->Submit({&request, 1}, {&handle, 1});
      if (status.ok()) status = engines[rank]->Wait(handle, Soon());
      EXPECT_FALSE(status.ok()) << function;
      EXPECT_TRUE(Has(status.message(), "broken")) << function << status;
      EXPECT_TRUE(Has(status.message(), "OUT_OF_MEMORY")) << function << status;
    });
  }
}

// The other rank has its result by then.
TEST(Staging, a_result_that_does_not_reach_the_device_is_no_result) {
  EmulatedTrouble trouble(7);
  TestJob job(1, StagedJob());
  std::unique_ptr<Engine> engine = job.Start(0);
  const DeviceTensor tensor(0, Floats(100));
  trouble.Fail("cuMemcpyHtoDAsync_v2", 0, cuda::kOutOfMemory);
  const Status status = RunOn(*engine, tensor.InPlace(Kind::kAllreduce, "broken"));
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_TRUE(Has(status.message(), "allreduce 'broken' on rank 0: cuMemcpyHtoDAsync")) << status;
}

// The call that tells the device succeeds; the copy itself is what fails, whoever waits for it.
TEST(Staging, a_copy_back_that_fails_later_is_no_result) {
  for (const uint32_t delay_us : {0, 2000}) {
    EmulatedTrouble trouble(8, delay_us);
    TestJob job(1, StagedJob());
    std::unique_ptr<Engine> engine = job.Start(0);
    const DeviceTensor tensor(0, Floats(100));
    trouble.Fail("copy", 1, cuda::kIllegalAddress);
    const Status status = RunOn(*engine, tensor.InPlace(Kind::kAllreduce, "broken"));
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_TRUE(Has(status.message(), "allreduce 'broken' on rank 0: ")) << status;
  }
}

TEST(Staging, a_rank_that_ends_ends_what_others_have_staged) {
  TestJob job(2, StagedJob());
  std::unique_ptr<Engine> engines[] = {job.Start(0), job.Start(1)};
  testing::RunRanks(2, [&](int rank) {
    Engine& engine = *engines[rank];
    if (rank == 1) return engine.Abort("it has had enough", Soon());
    const DeviceTensor tensor(0, Floats(100));
    const Status status = RunOn(engine, tensor.InPlace(Kind::kAllreduce, "x"));
    EXPECT_EQ(status.code(), Code::kPeerLost) << status;
    EXPECT_TRUE(Has(status.message(), "it has had enough")) << status;
  });
}

TEST(Staging, a_stop_ends_what_no_kernel_will_ever_write) {
  std::atomic<bool> may_end{false};
  {
    TestJob job(1, StagedJob());
    std::unique_ptr<Engine> engine = job.Start(0);
    emulation().rabit_emulated_launch(
        0, nullptr, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); },
        &may_end);
    const DeviceTensor never(0, Floats(10));
    Request request = never.InPlace(Kind::kAllreduce, "never");
    Handle handle;
    ASSERT_OK(engine->Submit({&request, 1}, {&handle, 1}));

    EXPECT_OK(engine->Stop(Soon()));
    const Status status = engine->Wait(handle, Soon());
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_TRUE(Has(status.message(), "'never' on rank 0")) << status;
    may_end.store(true);
    may_end.notify_all();
    emulation().rabit_emulated_finish(0, nullptr);
  }
}

}  // namespace
}  // namespace rabit

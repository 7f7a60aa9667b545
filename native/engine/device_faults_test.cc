// What goes wrong with tensors of a device, staged, by NCCL or by both: every rank hears of it, and
// none hangs.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "testing/device_job.h"
#include "testing/device_tensor.h"
#include "testing/emulated_driver.h"
#include "testing/engine_job.h"
#include "testing/forwarding_backend.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::DeviceJob;
using testing::DeviceTensor;
using testing::DeviceWay;
using testing::EmulatedTrouble;
using testing::emulation;
using testing::Has;
using testing::JobOptions;
using testing::kBothWays;
using testing::kEveryWay;
using testing::MakeRequest;
using testing::RunOn;
using testing::Soon;
using Floats = std::vector<float>;

// Two ranks with two small tensors each, which are fused.
class Pair {
 public:
  explicit Pair(DeviceWay way) : job_(way, 2) {
    for (const int rank : {0, 1}) {
      engines_[rank] = job_.Start(rank);
      for (std::unique_ptr<DeviceTensor>& each : tensors_[rank]) {
        each = std::make_unique<DeviceTensor>(rank, Floats(100, 1.0f));
      }
      emulation().rabit_emulated_finish(rank, nullptr);
    }
  }
  // Sums both, and returns what the ranks hear of it.
  std::vector<Status> Run() {
    std::vector<Status> heard(2);
    testing::RunRanks(2, [&](int rank) {
      std::vector<Request> requests = {tensors_[rank][0]->InPlace(Kind::kAllreduce, "a"),
                                       tensors_[rank][1]->InPlace(Kind::kAllreduce, "b")};
      std::vector<Handle> handles(2);
      Status& status = heard[static_cast<size_t>(rank)];
      status = engines_[rank]->Submit(requests, handles);
      if (!status.ok()) return;
      for (const Handle handle : handles) {
        const Status each = engines_[rank]->Wait(handle, Soon());
        if (status.ok()) status = each;
        engines_[rank]->Release(handle);
      }
    });
    return heard;
  }
  void MayLeaveBehind() { job_.MayLeaveBehind(); }

 private:
  DeviceJob job_;
  std::unique_ptr<DeviceTensor> tensors_[2][2];
  std::unique_ptr<Engine> engines_[2];
};

std::vector<std::string> CallsOf(DeviceWay way) {
  std::vector<std::string> calls = {
      "cuStreamIsCapturing", "cuEventCreate",  "cuEventRecord",        "cuEventQuery",
      "cuStreamCreate",      "cuMemHostAlloc", "cuMemcpyDtoHAsync_v2", "copy"};
  if (way == DeviceWay::kNccl) {
    calls = {"cuStreamIsCapturing", "cuEventCreate",        "cuEventRecord",
             "cuEventQuery",        "cuStreamCreate",       "cuStreamWaitEvent",
             "cuMemAlloc_v2",       "cuMemcpyDtoDAsync_v2", "copy"};
  }
  if (way == DeviceWay::kHierarchical) {
    calls = {"cuMemHostAlloc", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"};
  }
  return calls;
}

TEST(DeviceFaults, whichever_call_of_the_driver_fails_both_ranks_hear_of_it) {
  for (const DeviceWay way : kEveryWay) {
    for (const std::string& function : CallsOf(way)) {
      EmulatedTrouble trouble(31);
      Pair pair(way);
      const uint64_t called = emulation().rabit_emulated_calls(function.c_str());
      if (function == "copy") pair.MayLeaveBehind();
      trouble.Fail(function, 0, cuda::kOutOfMemory);
      const std::vector<Status> heard = pair.Run();
      const std::string what = std::string(Name(way)) + " " + function;
      EXPECT_TRUE(function == "copy" || emulation().rabit_emulated_calls(function.c_str()) > called)
          << what;
      // When the kernels have ended, or the exchange between hosts, the other rank may have its
      // result before it hears of anything.
      const bool is_late = (function == "cuEventQuery" && way != DeviceWay::kStaged) ||
                           (function == "cuMemcpyHtoDAsync_v2" && way == DeviceWay::kHierarchical);
      EXPECT_FALSE(heard[0].ok() && heard[1].ok()) << what;
      for (const Status& status : heard) {
        if (is_late && status.ok()) continue;
        EXPECT_FALSE(status.ok()) << what;
        EXPECT_TRUE(Has(status.message(), "OUT_OF_MEMORY")) << what << status;
        EXPECT_TRUE(Has(status.message(), "'a'") || Has(status.message(), "'b'")) << what << status;
      }
    }
  }
}

TEST(DeviceFaults, whichever_allocation_fails_the_job_ends_with_advice) {
  for (const DeviceWay way : kBothWays) {
    const char* const function = way == DeviceWay::kNccl ? "cuMemAlloc_v2" : "cuMemHostAlloc";
    for (const uint64_t skip : {0, 1}) {
      EmulatedTrouble trouble(32);
      Pair pair(way);
      trouble.Fail(function, skip, cuda::kOutOfMemory);  // of either rank
      for (const Status& status : pair.Run()) {
        EXPECT_EQ(status.code() == Code::kResourceExhausted || status.code() == Code::kPeerLost,
                  true)
            << status;
        EXPECT_TRUE(Has(status.message(), "lower partition_bytes")) << status;
      }
    }
  }
}

TEST(DeviceFaults, ranks_that_differ_are_told_and_go_on) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(33, 100);
    DeviceJob(way, 2).Run([](Engine& engine, int rank) {
      const DeviceTensor odd(rank, Floats(static_cast<size_t>(100 + rank), 1.0f));
      const Status status = RunOn(engine, odd.InPlace(Kind::kAllreduce, "odd"));
      EXPECT_EQ(status.code(), Code::kMismatch) << status;
      EXPECT_TRUE(Has(status.message(), "float32[101]")) << status;
      EXPECT_EQ(odd.Read(), Floats(static_cast<size_t>(100 + rank), 1.0f));
      const DeviceTensor even(rank, Floats(100, 1.0f));
      EXPECT_OK(RunOn(engine, even.InPlace(Kind::kAllreduce, "even")));
      EXPECT_EQ(even.Read(), Floats(100, 2.0f));
    });
  }
}

TEST(DeviceFaults, a_rank_that_comes_late_is_waited_for_until_the_caller_has_enough) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(34, 100);
    DeviceJob(way, 2).Run([](Engine& engine, int rank) {
      const DeviceTensor tensor(rank, Floats(100, 1.0f));
      std::vector<float> none(1);
      Request request = tensor.InPlace(Kind::kAllreduce, "late");
      Handle handle;
      if (rank == 0) {
        ASSERT_OK(engine.Submit({&request, 1}, {&handle, 1}));
        const Deadline soon = After(std::chrono::milliseconds(20));
        EXPECT_EQ(engine.WaitOnStream(handle, 0, soon).code(), Code::kTimedOut);
        EXPECT_EQ(engine.Wait(handle, soon).code(), Code::kTimedOut);
        EXPECT_FALSE(engine.Output(handle).ok());
      }
      (void)testing::RunOne<float>(engine, MakeRequest("waited", Kind::kAllreduce, none));
      if (rank == 1) {
        ASSERT_OK(engine.Submit({&request, 1}, {&handle, 1}));
      }
      EXPECT_OK(engine.WaitOnStream(handle, 0, Soon()));
      EXPECT_EQ(tensor.Read(), Floats(100, 2.0f));
    });
  }
}

TEST(DeviceFaults, a_rank_that_ends_is_named_to_who_waits_in_either_way) {
  for (const DeviceWay way : kEveryWay) {
    for (const bool is_on_stream : {false, true}) {
      EmulatedTrouble trouble(35);
      DeviceJob job(way, 2);
      std::unique_ptr<Engine> engines[] = {job.Start(0), job.Start(1)};
      std::atomic<bool> has_result{false};
      testing::RunRanks(2, [&](int rank) {
        Engine& engine = *engines[rank];
        const DeviceTensor tensor(rank, Floats(100, 1.0f));
        EXPECT_OK(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "both")));
        if (rank == 0) {
          has_result.store(true);
          has_result.notify_all();
        }
        has_result.wait(false);
        if (rank == 1) return engine.Abort("it has had enough", Soon());
        Request request = tensor.InPlace(Kind::kAllreduce, "one");
        Handle handle;
        Status status = engine.Submit({&request, 1}, {&handle, 1});
        if (status.ok()) {
          status =
              is_on_stream ? engine.WaitOnStream(handle, 0, Soon()) : engine.Wait(handle, Soon());
        }
        EXPECT_EQ(status.code(), Code::kPeerLost) << status;
        EXPECT_TRUE(Has(status.message(), "it has had enough")) << status;
      });
    }
  }
}

// Its part of the sum inside the host is there, and it does not come to the exchange between hosts.
TEST(DeviceFaults, a_rank_that_is_lost_between_the_steps_of_a_hierarchy_is_named_to_all) {
  class Lost final : public testing::ForwardingBackend {
   public:
    using ForwardingBackend::ForwardingBackend;
    Operation Allreduce(const LaneContext&, const TensorView&, ReduceOp) override {
      return Internal("the host has no more power");
    }
  };
  EmulatedTrouble trouble(38, 100);
  JobOptions options;
  options.wrap_backend = [](int rank, std::unique_ptr<Backend> inner) {
    return rank == 3 ? std::make_unique<Lost>(std::move(inner)) : std::move(inner);
  };
  constexpr int kRanks = 4;
  DeviceJob job(DeviceWay::kHierarchical, kRanks, std::move(options));
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < kRanks; ++rank) engines.push_back(job.Start(rank));
  testing::RunRanks(kRanks, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    const DeviceTensor tensor(rank, Floats(100, 1.0f));
    const Status status = RunOn(engine, tensor.InPlace(Kind::kAllreduce, "sum"));
    EXPECT_EQ(status.code(), Code::kInternal) << status;
    EXPECT_TRUE(Has(status.message(), "'sum' on rank " + std::to_string(rank))) << status;
    EXPECT_TRUE(Has(status.message(), "'sum' on rank 3: the host has")) << status;
  });
}

TEST(DeviceFaults, a_stop_ends_what_other_ranks_have_not_submitted) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(36);
    DeviceJob job(way, 2);
    std::unique_ptr<Engine> engines[] = {job.Start(0), job.Start(1)};
    testing::RunRanks(2, [&](int rank) {
      Engine& engine = *engines[rank];
      const DeviceTensor tensor(rank, Floats(100, 1.0f));
      Request request = tensor.InPlace(Kind::kAllreduce, "alone");
      Handle handle;
      if (rank == 0) {
        ASSERT_OK(engine.Submit({&request, 1}, {&handle, 1}));
      }
      EXPECT_OK(engine.Stop(Soon()));
      if (rank != 0) return;
      const Status status = engine.WaitOnStream(handle, 0, Soon());
      EXPECT_EQ(status.code(), Code::kAborted) << status;
      EXPECT_TRUE(Has(status.message(), "'alone' on rank 0")) << status;
    });
  }
}

TEST(DeviceFaults, one_call_may_have_tensors_of_the_host_and_of_a_device) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(37, 200);
    DeviceJob(way, 2).Run([](Engine& engine, int rank) {
      const DeviceTensor there(rank, Floats(100, 1.0f));
      Floats here(100, 1.0f);
      std::vector<Request> requests = {there.InPlace(Kind::kAllreduce, "there"),
                                       MakeRequest("here", Kind::kAllreduce, here)};
      std::vector<Handle> handles(2);
      ASSERT_OK(engine.Submit(requests, handles));
      for (const Handle handle : handles) EXPECT_OK(engine.WaitOnStream(handle, 0, Soon()));
      EXPECT_EQ(there.Read(), Floats(100, 2.0f));
      HandleOutput output = *engine.Output(handles[1]);
      const auto* const sums = static_cast<const float*>(output.view.data);
      EXPECT_EQ(Floats(sums, sums + 100), Floats(100, 2.0f));
    });
  }
}

}  // namespace
}  // namespace rabit

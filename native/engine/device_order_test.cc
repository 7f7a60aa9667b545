// Waiting on a stream: the host goes on, and what it puts there comes after the result.
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/wake_signal.h"
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

using testing::DeviceGate;
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
using testing::OpenEmulatedDriver;
using testing::RunOn;
using testing::Soon;
using Floats = std::vector<float>;

// A rank's stream, which has work that does not end until the gate opens.
class BusyStream {
 public:
  BusyStream(int rank, DeviceGate& gate)
      : stream_(std::move(*MakeStream(OpenEmulatedDriver(), rank))) {
    gate.Close(rank, stream_.get());
  }
  explicit BusyStream(int rank) : stream_(std::move(*MakeStream(OpenEmulatedDriver(), rank))) {}
  void* get() const { return stream_.get(); }
  uint64_t value() const { return reinterpret_cast<uint64_t>(stream_.get()); }

 private:
  DeviceStream stream_;
};

Handle SubmitTo(Engine& engine, Request request) {
  Handle handle;
  EXPECT_OK(engine.Submit({&request, 1}, {&handle, 1}));
  return handle;
}

bool IsOver(const Engine& engine, Handle handle) {
  const Result<bool> is_done = engine.IsDone(handle);
  return is_done.ok() && *is_done;
}

// Nothing of it has run when the calls return: not even the kernels that compute the tensor.
TEST(DeviceOrder, a_program_goes_on_while_its_device_is_far_behind) {
  EmulatedTrouble trouble(21, 100);
  DeviceGate gate;
  DeviceJob job(DeviceWay::kNccl, 2);
  job.Run([&](Engine& engine, int rank) {
    const BusyStream stream(rank, gate);
    const DeviceTensor tensor(rank, Floats(1000, 1.0f), stream.get());
    std::vector<Handle> handles;
    for (int step = 0; step < 20; ++step) {  // more than a lane has buckets in the air
      handles.push_back(SubmitTo(engine, tensor.InPlace(Kind::kAllreduce, "again")));
      EXPECT_OK(engine.WaitOnStream(handles.back(), stream.value(), Soon()));
      EXPECT_FALSE(IsOver(engine, handles.back()));
      EXPECT_OK(engine.Output(handles.back()).status());
    }
    std::vector<float> both(1);
    (void)testing::RunOne<float>(engine, MakeRequest("both", Kind::kAllreduce, both));
    gate.Open();
    EXPECT_EQ(tensor.Read(stream.get()), Floats(1000, 1048576.0f));
    for (const Handle handle : handles) {
      EXPECT_OK(engine.Wait(handle, Soon()));
      engine.Release(handle);
    }
  });
}

// Memory in which they are packed grows while the device still uses what was there before.
TEST(DeviceOrder, larger_and_larger_buckets_are_launched_behind_the_gate) {
  EmulatedTrouble trouble(27, 100);
  DeviceGate gate;
  DeviceJob job(DeviceWay::kNccl, 2);
  job.Run([&](Engine& engine, int rank) {
    const BusyStream stream(rank, gate);
    std::vector<std::unique_ptr<DeviceTensor>> tensors;
    std::vector<Handle> handles;
    for (size_t count = 10; count < 3000; count *= 3) {
      std::vector<Request> requests;
      for (int i = 0; i < 3; ++i) {
        tensors.push_back(std::make_unique<DeviceTensor>(rank, Floats(count, 1.0f), stream.get()));
        requests.push_back(tensors.back()->InPlace(Kind::kAllreduce, "t" + std::to_string(i)));
      }
      handles.resize(3);
      ASSERT_OK(engine.Submit(requests, handles));
      for (const Handle handle : handles) {
        EXPECT_OK(engine.WaitOnStream(handle, stream.value(), Soon()));
        engine.Release(handle);
      }
    }
    std::vector<float> both(1);
    (void)testing::RunOne<float>(engine, MakeRequest("both", Kind::kAllreduce, both));
    gate.Open();
    for (const auto& each : tensors) {
      const Floats seen = each->Read(stream.get());
      EXPECT_EQ(seen, Floats(seen.size(), 2.0f));
    }
  });
}

TEST(DeviceOrder, copies_back_are_waited_for_by_the_stream_alone) {
  EmulatedTrouble trouble(22, 100);
  JobOptions options;
  options.limits.partition_bytes = 2048;  // the result comes in several parts
  DeviceJob job(DeviceWay::kStaged, 2, std::move(options));
  job.Run([&](Engine& engine, int rank) {
    const BusyStream stream(rank);
    const DeviceTensor tensor(rank, Floats(1000, 1.0f), stream.get());
    emulation().rabit_emulated_hold(1);
    std::vector<Handle> handles(1, SubmitTo(engine, tensor.InPlace(Kind::kAllreduce, "x")));
    EXPECT_OK(engine.WaitOnStream(handles[0], stream.value(), Soon()));
    EXPECT_FALSE(IsOver(engine, handles[0]));
    std::vector<float> both(1);
    (void)testing::RunOne<float>(engine, MakeRequest("both", Kind::kAllreduce, both));
    emulation().rabit_emulated_hold(0);
    EXPECT_EQ(tensor.Read(stream.get()), Floats(1000, 2.0f));
    EXPECT_OK(engine.Wait(handles[0], Soon()));
  });
}

// Tells, for each exchange from the second on, whether the tensor after it had been copied to the
// host when it began.  The first one waits for the gate; before each of the others every copy that
// was told has ended.
class LookingAhead final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    if (exchanges_++ == 0) {
      gate.wait(false);
    } else {
      EXPECT_OK(MakeMemory(driver_, 0, 1).status());  // given back at once, which waits
    }
    if (exchanges_ > 1 && exchanges_ < order.size()) {
      const auto next = reinterpret_cast<cuda::Pointer>(order[exchanges_]);
      was_copied.push_back(emulation().rabit_emulated_copy_of(next) != 0);
    }
    return ForwardingBackend::Allreduce(lane, in_out, op);
  }

  std::atomic<bool> gate{false};
  std::vector<const void*> order;  // of the exchanges
  std::vector<bool> was_copied;

 private:
  const std::shared_ptr<DeviceDriver> driver_ = OpenEmulatedDriver();
  size_t exchanges_ = 0;
};

// Until the lane has so many buckets in its queue or behind it.
void AwaitIssued(const Engine& engine, size_t count) {
  const std::string wanted = "\"issued\":" + std::to_string(count) + ",";
  const Deadline until = Soon();
  while (!Has(engine.StatisticsJson(), wanted)) {
    ASSERT_TRUE(std::chrono::steady_clock::now() < until);
    std::this_thread::yield();
  }
}

// Of a lane's whole queue, however long it is: each bucket is copied while one before it travels.
TEST(DeviceOrder, staged_buckets_are_copied_by_priority_while_others_are_exchanged) {
  EmulatedTrouble trouble(28, 100);
  constexpr int32_t kPriorities[] = {0, 3, 9, 1, 7, 5, 8, 2, 6, 4};
  std::vector<std::unique_ptr<DeviceTensor>> tensors(10);  // by place in the order
  LookingAhead* looking = nullptr;
  JobOptions options;
  options.engine.lanes = 1;
  options.limits.fusion_bytes = 0;
  options.wrap_backend = [&](int, std::unique_ptr<Backend> inner) {
    auto wrapped = std::make_unique<LookingAhead>(std::move(inner));
    looking = wrapped.get();
    return wrapped;
  };
  DeviceJob job(DeviceWay::kStaged, 1, std::move(options));
  job.Run([&](Engine& engine, int rank) {
    for (auto& each : tensors) {
      each = std::make_unique<DeviceTensor>(rank, Floats(100, 1.0f));
      looking->order.push_back(each->view().data);
    }
    std::vector<Handle> handles = {SubmitTo(engine, tensors[0]->InPlace(Kind::kAllreduce, "held"))};
    AwaitIssued(engine, 1);
    std::vector<Request> requests;
    for (const int32_t priority : std::span(kPriorities).subspan(1)) {
      const auto place = static_cast<size_t>(10 - priority);
      requests.push_back(tensors[place]->InPlace(Kind::kAllreduce, std::to_string(priority)));
      requests.back().signature.priority = priority;
    }
    handles.resize(tensors.size());
    ASSERT_OK(engine.Submit(requests, std::span(handles).subspan(1)));
    AwaitIssued(engine, tensors.size());
    looking->gate.store(true);
    looking->gate.notify_all();
    for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));

    EXPECT_EQ(looking->was_copied, std::vector<bool>(tensors.size() - 2, true));
    for (size_t i = 1; i < tensors.size(); ++i) {
      const auto number = [&](size_t place) {
        return emulation().rabit_emulated_copy_of(
            reinterpret_cast<cuda::Pointer>(looking->order[place]));
      };
      EXPECT_TRUE(number(i - 1) < number(i)) << "place " << i;
    }
  });
}

// Priorities are for what is there: a tensor that is urgent and not computed yet holds nothing up.
TEST(DeviceOrder, what_has_a_priority_is_announced_when_it_is_computed) {
  EmulatedTrouble trouble(23, 100);
  DeviceGate gate;
  DeviceJob job(DeviceWay::kNccl, 2);
  job.Run([&](Engine& engine, int rank) {
    const BusyStream late(rank, gate);
    const DeviceTensor urgent(rank, Floats(10, 1.0f), late.get());
    const DeviceTensor other(rank, Floats(10, 1.0f));
    Request request = urgent.InPlace(Kind::kAllreduce, "urgent");
    request.signature.priority = 1;
    const Handle handle = SubmitTo(engine, std::move(request));
    EXPECT_OK(RunOn(engine, other.InPlace(Kind::kAllreduce, "other")));
    EXPECT_EQ(other.Read(), Floats(10, 2.0f));
    EXPECT_FALSE(IsOver(engine, handle));
    std::vector<float> both(1);
    (void)testing::RunOne<float>(engine, MakeRequest("both", Kind::kAllreduce, both));
    gate.Open();
    EXPECT_OK(engine.WaitOnStream(handle, late.value(), Soon()));
    EXPECT_EQ(urgent.Read(late.get()), Floats(10, 2.0f));
  });
}

TEST(DeviceOrder, a_result_on_the_host_is_there) {
  for (const DeviceWay way : kEveryWay) {
    EmulatedTrouble trouble(24, 300);
    DeviceJob(way, 2).Run([](Engine& engine, int rank) {
      const BusyStream stream(rank);
      const DeviceTensor tensor(rank, Floats(100, 1.0f), stream.get());
      Floats host(100);
      Request request = tensor.As(Kind::kAllreduce, "x");
      request.output = {host.data(), 100, DType::kFloat32, {}};
      const Handle handle = SubmitTo(engine, std::move(request));
      EXPECT_OK(engine.WaitOnStream(handle, stream.value(), Soon()));
      EXPECT_EQ(host, Floats(100, 2.0f));
    });
  }
}

// The stream goes on, for what comes after it has to end as well; the error reaches who asks next.
TEST(DeviceOrder, a_rank_that_is_lost_later_is_named_and_no_stream_waits_for_it) {
  EmulatedTrouble trouble(25);
  DeviceGate gate;
  DeviceJob job(DeviceWay::kNccl, 2);
  std::unique_ptr<Engine> engines[] = {job.Start(0), job.Start(1)};
  std::atomic<bool> has_launched{false};
  testing::RunRanks(2, [&](int rank) {
    Engine& engine = *engines[rank];
    const BusyStream stream = rank == 1 ? BusyStream(rank, gate) : BusyStream(rank);
    const DeviceTensor tensor(rank, Floats(100, 1.0f), stream.get());
    const Handle handle = SubmitTo(engine, tensor.InPlace(Kind::kAllreduce, "x"));
    EXPECT_OK(engine.WaitOnStream(handle, stream.value(), Soon()));
    if (rank == 0) {
      has_launched.store(true);
      has_launched.notify_all();
    }
    has_launched.wait(false);
    if (rank == 1) return engine.Abort("it has had enough", Soon());
    (void)tensor.Read(stream.get());  // it ends
    const Status status = engine.Wait(handle, Soon());
    EXPECT_EQ(status.code(), Code::kPeerLost) << status;
    EXPECT_TRUE(Has(status.message(), "it has had enough")) << status;
    EXPECT_TRUE(Has(status.message(), "'x' on rank 0")) << status;
    EXPECT_EQ(engine.WaitOnStream(handle, stream.value(), Soon()).code(), Code::kPeerLost);
    EXPECT_EQ(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "next")).code(), Code::kPeerLost);
    gate.Open();
  });
  engines[0].reset();
  engines[1].reset();
}

// A rule may have partitions staged whose whole tensor is NCCL's, and so comes before it is there.
TEST(DeviceOrder, a_staged_result_comes_after_what_its_tensor_held_before) {
  EmulatedTrouble trouble(29, 100);
  DeviceGate gate;
  JobOptions options;
  options.limits.partition_bytes = 2048;
  options.limits.fusion_bytes = 0;
  options.routes = "broadcast:<3K:plain";
  DeviceJob job(DeviceWay::kNccl, 2, std::move(options));
  job.Run([&](Engine& engine, int rank) {
    const BusyStream stream = rank == 1 ? BusyStream(rank, gate) : BusyStream(rank);
    const DeviceTensor tensor(rank, Floats(1000, rank == 0 ? 1.0f : 2.0f), stream.get());
    Request request = tensor.InPlace(Kind::kBroadcast, "root");
    request.signature.root = 0;
    const Handle handle = SubmitTo(engine, std::move(request));
    EXPECT_OK(engine.WaitOnStream(handle, stream.value(), Soon()));
    if (rank == 1) {
      const Deadline soon = After(std::chrono::milliseconds(50));
      EXPECT_EQ(engine.Wait(handle, soon).code(), Code::kTimedOut);
      gate.Open();
    }
    EXPECT_EQ(tensor.Read(stream.get()), Floats(1000, 1.0f));
    EXPECT_OK(engine.Wait(handle, Soon()));
    EXPECT_TRUE(Has(engine.StatisticsJson(), "route_rule"));
  });
}

// Giving memory back would wait for the kernel, which may be one whose peer is lost.
TEST(DeviceOrder, memory_grows_behind_a_kernel_that_does_not_end) {
  for (const DeviceWay way : kEveryWay) {
    EmulatedTrouble trouble(30, 100);
    DeviceGate gate;
    const int ranks = way == DeviceWay::kHierarchical ? 4 : 2;
    JobOptions options;
    options.engine.lanes = 1;
    DeviceJob job(way, ranks, std::move(options));
    job.Run([&](Engine& engine, int rank) {
      const BusyStream busy(rank, gate);
      for (size_t count = 100; count < 30'000; count *= 4) {
        const DeviceTensor one(rank, Floats(count, 1.0f));
        const DeviceTensor two(rank, Floats(count, 2.0f));
        Floats sums[] = {Floats(count), Floats(count)};
        std::vector<Request> requests = {one.As(Kind::kAllreduce, "one"),
                                         two.As(Kind::kAllreduce, "two")};
        for (size_t i : {0, 1}) {
          requests[i].output = {sums[i].data(), static_cast<int64_t>(count), DType::kFloat32, {}};
        }
        std::vector<Handle> handles(2);
        EXPECT_OK(engine.Submit(requests, handles));
        for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
        const auto all = static_cast<float>(ranks);
        EXPECT_EQ(sums[0], Floats(count, all)) << Name(way);
        EXPECT_EQ(sums[1], Floats(count, 2 * all)) << Name(way);
      }
      std::vector<float> both(1);
      (void)testing::RunOne<float>(engine, MakeRequest("both", Kind::kAllreduce, both));
      gate.Open();
    });
  }
}

// The same of what a lane has on one device when its next bucket is on another.
TEST(DeviceOrder, a_lane_goes_to_another_device_while_one_does_not_end) {
  EmulatedTrouble trouble(31, 100);
  DeviceGate gate;
  DeviceJob job(DeviceWay::kNccl, 1);
  job.Run([&](Engine& engine, int) {
    const Result<GroupId> group = engine.AddGroup(std::vector<int>{0}, Soon());
    ASSERT_OK(group);
    std::vector<std::unique_ptr<DeviceTensor>> tensors;
    std::vector<Handle> handles;
    const BusyStream busy(0, gate);
    const BusyStream other(1);
    for (const int device : {0, 1, 0, 1}) {
      const BusyStream& stream = device == 0 ? busy : other;
      std::vector<Request> requests;
      for (const char* const name : {"one", "two"}) {  // which are packed
        tensors.push_back(std::make_unique<DeviceTensor>(device, Floats(10, 1.0f), stream.get()));
        requests.push_back(tensors.back()->InPlace(Kind::kAllreduce, name));
        requests.back().signature.group = device == 0 ? kWorld : *group;
      }
      std::vector<Handle> both(2);
      EXPECT_OK(engine.Submit(requests, both));
      for (const Handle handle : both) {
        EXPECT_OK(engine.WaitOnStream(handle, stream.value(), Soon()));
        handles.push_back(handle);
      }
    }
    EXPECT_EQ(tensors[2]->Read(other.get()), Floats(10, 1.0f));
    EXPECT_FALSE(IsOver(engine, handles[0]));
    gate.Open();
    for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
  });
}

TEST(DeviceOrder, a_stream_that_cannot_wait_is_refused_with_the_name) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(26);
    DeviceJob(way, 1).Run([&](Engine& engine, int rank) {
      const BusyStream stream(rank);
      const DeviceTensor tensor(rank, Floats(100, 1.0f), stream.get());
      emulation().rabit_emulated_hold(1);
      DeviceGate gate;
      if (way == DeviceWay::kNccl) gate.Close(rank, stream.get());
      const Handle handle = SubmitTo(engine, tensor.InPlace(Kind::kAllreduce, "x"));
      EXPECT_OK(engine.WaitOnStream(handle, stream.value(), Soon()));
      emulation().rabit_emulated_capture(1);
      const Status captured = engine.WaitOnStream(handle, stream.value(), Soon());
      EXPECT_EQ(captured.code(), Code::kUnsupported);
      EXPECT_TRUE(Has(captured.message(), "'x' on rank 0: ")) << captured;
      emulation().rabit_emulated_capture(cuda::kCaptureStatusNone);
      trouble.Fail("cuStreamWaitEvent", 0, cuda::kIllegalAddress);
      const Status failed = engine.WaitOnStream(handle, stream.value(), Soon());
      EXPECT_EQ(failed.code(), Code::kInternal);
      EXPECT_TRUE(Has(failed.message(), "'x' on rank 0: cuStreamWaitEvent")) << failed;
      gate.Open();
      emulation().rabit_emulated_hold(0);
      EXPECT_OK(engine.Wait(handle, Soon()));
    });
  }
}

// What is on a stream counts as done, so that the next step comes early; its lane waits for it
// still.
TEST(DeviceOrder, a_rank_stops_when_its_streams_are_through) {
  DeviceJob job(DeviceWay::kNccl, 1);
  const std::unique_ptr<Engine> engine = job.Start(0);
  const DeviceTensor tensor(0, Floats(10, 1.0f));
  std::atomic<bool> may_end{false};
  emulation().rabit_emulated_launch(
      0, nullptr, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &may_end);
  const Handle handle =
      testing::SubmitOne(*engine, tensor.InPlace(Kind::kAllreduce, "behind a long kernel"));
  EXPECT_OK(engine->WaitOnStream(handle, 0, Soon()));  // it is launched
  std::atomic<bool> has_stopped{false};
  WakeSignal stopped;
  std::thread stops([&] {
    EXPECT_OK(engine->Stop(Soon()));
    has_stopped.store(true);
    stopped.Notify();
  });

  EXPECT_FALSE(stopped.Wait([&] { return has_stopped.load(); }, After(std::chrono::seconds(2))));
  may_end.store(true);
  may_end.notify_all();

  stops.join();
  EXPECT_EQ(tensor.Read(), Floats(10, 1.0f));
}

}  // namespace
}  // namespace rabit

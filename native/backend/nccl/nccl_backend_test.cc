// NCCL's backend over the emulated NCCL; ranks are threads.
#include "backend/nccl/nccl_backend.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "testing/backend_conformance.h"
#include "testing/emulated_nccl.h"
#include "testing/meeting.h"
#include "testing/memory_store.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::DeviceArray;
using testing::EmulatedTrouble;
using testing::emulation;
using testing::Has;
using testing::HostedBackend;
using testing::MemoryStore;
using testing::nccl_emulation;
using testing::OpenEmulatedDriver;
using testing::OpenEmulatedNccl;
using testing::RunRanks;
using testing::Soon;
using testing::WorldOf;
using Floats = std::vector<float>;

// Of all jobs of this process.
Store& TheStore() {
  static auto* const store = new MemoryStore;
  return *store;
}

std::vector<std::unique_ptr<NcclBackend>> MakeRaw(int size) {
  static std::atomic<int> jobs{0};
  const std::string key = "job" + std::to_string(++jobs);
  std::vector<std::unique_ptr<NcclBackend>> backends;
  for (int rank = 0; rank < size; ++rank) {
    backends.push_back(std::make_unique<NcclBackend>(OpenEmulatedNccl(), &TheStore(),
                                                     NcclOptions{.rank = rank, .key = key}));
  }
  return backends;
}

std::vector<std::unique_ptr<Backend>> MakeHosted(int size) {
  std::vector<std::unique_ptr<Backend>> backends;
  int rank = 0;
  for (auto& each : MakeRaw(size)) {
    backends.push_back(std::make_unique<HostedBackend>(std::move(each), rank++));
  }
  return backends;
}

const int registered = testing::RegisterBackendConformance("NcclBackend", MakeHosted);

// A rank with a device, a stream and an event of its own.
struct OnDevice {
  explicit OnDevice(int rank, int size, double factor = 1.0)
      : driver(OpenEmulatedDriver()),
        stream(MakeStream(driver, rank).value()),
        event(MakeEvent(driver, rank).value()),
        group(WorldOf(size, rank)),
        place{driver, rank, stream.get(), factor} {}

  LaneContext lane(Deadline deadline = Soon()) const {
    return {0, Tag{0}, deadline, group, Waiter::kBackground, {}, &place};
  }
  Status Await(Backend& backend, Deadline deadline = Soon()) {
    RABIT_RETURN_IF_ERROR(driver->Record(place.device, event.get(), place.stream));
    return WaitOnStream(backend, group, place, event.get(), deadline);
  }
  // What is on the stream has ended.
  Status Drain() { return WaitOver(*driver, place.device, event.get(), Soon()); }

  const std::shared_ptr<DeviceDriver> driver;
  DeviceStream stream;
  DeviceEvent event;
  const Group group;
  DevicePlace place;
};

template <class T>
std::vector<T> Reduced(int size, DType dtype, ReduceOp op, double factor,
                       const std::function<T(int)>& value) {
  const auto backends = MakeRaw(size);
  std::vector<T> result;
  RunRanks(size, [&](int rank) {
    OnDevice at(rank, size, factor);
    const DeviceArray<T> array(rank, 5);
    array.Launch(std::vector<T>(5, value(rank)), at.place.stream);
    NcclBackend& backend = *backends[static_cast<size_t>(rank)];
    EXPECT_OK(backend.Allreduce(at.lane(), {array.data(), 5, dtype, {}}, op).Wait(Soon()));
    EXPECT_OK(at.Await(backend));
    const std::vector<T> seen = array.Read(at.place.stream);
    if (rank == 0) result = seen;
  });
  return result;
}

TEST(NcclBackend, sums_and_averages_are_multiplied_on_the_way) {
  EmulatedTrouble trouble(5, 200);
  const auto operators = nccl_emulation().counts().operators;
  const std::function<float(int)> one_and_two = [](int rank) { return rank + 1.0f; };
  const auto sum = [&](ReduceOp op, double factor) {
    return Reduced<float>(2, DType::kFloat32, op, factor, one_and_two);
  };

  EXPECT_EQ(sum(ReduceOp::kSum, 0.25), Floats(5, 0.75f));
  EXPECT_EQ(sum(ReduceOp::kAverage, 1.0), Floats(5, 1.5f));
  EXPECT_EQ(sum(ReduceOp::kAverage, 4.0), Floats(5, 6.0f));
  EXPECT_EQ(sum(ReduceOp::kProduct, 1.0), Floats(5, 2.0f));
  EXPECT_EQ(nccl_emulation().counts().operators, operators);
}

TEST(NcclBackend, types_of_one_and_two_bytes_are_those_of_nccl) {
  EmulatedTrouble trouble(1);
  const std::function<uint16_t(int)> half = [](int) { return uint16_t{0x3c00}; };
  const std::function<uint16_t(int)> brain = [](int) { return uint16_t{0x3f80}; };
  const std::function<int8_t(int)> small = [](int rank) { return static_cast<int8_t>(rank - 3); };

  EXPECT_EQ((Reduced<uint16_t>(2, DType::kFloat16, ReduceOp::kSum, 1.0, half)[4]), 0x4000);
  EXPECT_EQ((Reduced<uint16_t>(2, DType::kFloat16, ReduceOp::kSum, 0.5, half)[0]), 0x3c00);
  EXPECT_EQ((Reduced<uint16_t>(2, DType::kBfloat16, ReduceOp::kSum, 1.0, brain)[4]), 0x4000);
  EXPECT_EQ((Reduced<uint16_t>(2, DType::kBfloat16, ReduceOp::kSum, 0.5, brain)[0]), 0x3f80);
  EXPECT_EQ((Reduced<int8_t>(2, DType::kInt8, ReduceOp::kMin, 1.0, small)[2]), -3);
  EXPECT_EQ((Reduced<double>(2, DType::kFloat64, ReduceOp::kSum, 0.1, [](int) { return 1.0; })[0]),
            0.1 + 0.1);
}

TEST(NcclBackend, what_nccl_cannot_do_is_an_error_that_names_it) {
  EmulatedTrouble trouble(1);
  const auto backends = MakeRaw(1);
  const auto refused = [&](DType dtype, ReduceOp op, double factor) {
    OnDevice at(0, 1, factor);
    const DeviceArray<double> array(0, 1);
    return backends[0]->Allreduce(at.lane(), {array.data(), 1, dtype, {}}, op).Wait(Soon());
  };

  EXPECT_EQ(refused(DType::kInt16, ReduceOp::kSum, 1.0).code(), Code::kUnsupported);
  EXPECT_EQ(refused(DType::kInt32, ReduceOp::kBitXor, 1.0).code(), Code::kUnsupported);
  EXPECT_EQ(refused(DType::kFloat32, ReduceOp::kMax, 2.0).code(), Code::kUnsupported);
  EXPECT_TRUE(Has(refused(DType::kInt32, ReduceOp::kSum, 0.5).message(), "sum of int32 times 0.5"));
}

TEST(NcclBackend, ranks_that_launch_in_different_orders_wait_until_they_are_given_up) {
  EmulatedTrouble trouble(1);
  const auto backends = MakeRaw(2);
  testing::Meeting both_have_waited(2);
  RunRanks(2, [&](int rank) {
    NcclBackend& backend = *backends[static_cast<size_t>(rank)];
    OnDevice at(rank, 2);
    Group pair = at.group;
    pair.id = 7;
    ASSERT_OK(backend.AddGroup(pair));
    const DeviceStream other = MakeStream(at.driver, rank).value();
    DevicePlace there = at.place;
    there.stream = other.get();
    const DeviceArray<float> array(rank, 1000);
    const TensorView view{array.data(), 1000, DType::kFloat32, {}};
    const LaneContext first = at.lane();
    const LaneContext second{1, Tag{0}, Soon(), pair, Waiter::kBackground, {}, &there};
    // Communicators are made in one order; then the launches cross.
    for (const LaneContext& lane : {first, second}) {
      EXPECT_OK(backend.Allreduce(lane, view, ReduceOp::kSum).Wait(Soon()));
    }
    EXPECT_OK(at.Await(backend));
    EXPECT_OK(backend.Allreduce(rank == 0 ? first : second, view, ReduceOp::kSum).Wait(Soon()));
    EXPECT_OK(backend.Allreduce(rank == 0 ? second : first, view, ReduceOp::kSum).Wait(Soon()));
    EXPECT_EQ(at.Await(backend, After(std::chrono::milliseconds(100))).code(), Code::kTimedOut);
    both_have_waited.Await();  // One communicator ends before the other, which is free then.
    backend.Abort(Aborted("enough"));
    EXPECT_OK(at.Drain());
    EXPECT_EQ(at.Await(backend).message(), "enough");
    emulation().rabit_emulated_finish(rank, static_cast<cuda::Stream>(other.get()));
  });
}

// An abort waits for the kernels of its communicator, and here they stand behind one of another.
TEST(NcclBackend, communicators_whose_kernels_stand_behind_each_other_are_given_up_together) {
  EmulatedTrouble trouble(1);
  const auto violations = nccl_emulation().counts().violations;
  const auto backends = MakeRaw(2);
  RunRanks(2, [&](int rank) {
    NcclBackend& backend = *backends[static_cast<size_t>(rank)];
    OnDevice at(rank, 2);
    Group pair = at.group;
    pair.id = 7;
    ASSERT_OK(backend.AddGroup(pair));
    const DeviceArray<float> array(rank, 1000);
    const TensorView view{array.data(), 1000, DType::kFloat32, {}};
    const LaneContext world = at.lane();
    const LaneContext later{0, Tag{0}, Soon(), pair, Waiter::kBackground, {}, &at.place};
    for (const LaneContext& lane : {world, later}) {
      EXPECT_OK(backend.Allreduce(lane, view, ReduceOp::kSum).Wait(Soon()));
    }
    EXPECT_OK(at.Await(backend));
    if (rank == 0) {  // the other one does not come
      EXPECT_OK(backend.Allreduce(later, view, ReduceOp::kSum).Wait(Soon()));
      EXPECT_OK(backend.Allreduce(world, view, ReduceOp::kSum).Wait(Soon()));
      EXPECT_EQ(at.Await(backend, After(std::chrono::milliseconds(50))).code(), Code::kTimedOut);
      backend.Abort(PeerLost(1, "rank 1 is lost"));
      EXPECT_OK(at.Drain());
    }
  });
  EXPECT_EQ(nccl_emulation().counts().violations, violations);
}

TEST(NcclBackend, an_abort_does_not_wait_for_kernels_of_the_program) {
  EmulatedTrouble trouble(1);
  const auto violations = nccl_emulation().counts().violations;
  const auto backends = MakeRaw(1);
  OnDevice at(0, 1);
  const DeviceArray<float> array(0, 10);
  const Bytes bytes{static_cast<std::byte*>(array.data()), 40};
  testing::DeviceGate gate;
  gate.Close(0, at.place.stream);
  EXPECT_OK(backends[0]->Broadcast(at.lane(), bytes, 0).Wait(Soon()));
  ASSERT_OK(at.driver->Record(0, at.event.get(), at.place.stream));

  backends[0]->Abort(Aborted("enough"));  // the gate is closed

  EXPECT_EQ(backends[0]->Broadcast(at.lane(), bytes, 0).Wait(Soon()).message(), "enough");
  gate.Open();
  EXPECT_OK(at.Drain());
  EXPECT_EQ(nccl_emulation().counts().violations, violations);
}

// The driver may wait for the very kernels that are to be given up.
TEST(NcclBackend, kernels_are_given_up_without_a_call_of_the_driver) {
  EmulatedTrouble trouble(1);
  const auto living = nccl_emulation().counts().communicators;
  const auto backends = MakeRaw(1);
  OnDevice at(0, 1);
  const DeviceArray<float> array(0, 10);
  nccl_emulation().rabit_emulated_nccl_break(0, nccl::kInProgress);  // it never ends
  EXPECT_OK(backends[0]
                ->Broadcast(at.lane(), {static_cast<std::byte*>(array.data()), 40}, 0)
                .Wait(Soon()));
  ASSERT_OK(at.driver->Record(0, at.event.get(), at.place.stream));

  trouble.Fail("cuCtxPushCurrent_v2", 0, cuda::kIllegalAddress);
  EXPECT_OK(backends[0]->Failure(at.group));
  trouble.Fail("cuCtxPushCurrent_v2", 0, cuda::kIllegalAddress);  // unless it was called
  backends[0]->Abort(Aborted("enough"));

  ASSERT_EQ(nccl_emulation().counts().communicators, living);
  EXPECT_OK(at.Drain());
}

// What a rank has sent last is on its way when its own kernel has ended.
TEST(NcclBackend, what_a_rank_has_sent_arrives_after_it_has_ended) {
  EmulatedTrouble trouble(1);
  auto backends = MakeRaw(2);
  const auto communicators = nccl_emulation().counts().communicators;
  const auto finalized = nccl_emulation().rabit_emulated_nccl_calls("ncclCommFinalize");
  RunRanks(2, [&](int rank) {
    std::unique_ptr<NcclBackend> backend = std::move(backends[static_cast<size_t>(rank)]);
    OnDevice at(rank, 2);
    const DeviceArray<float> array(rank, 10);
    const Bytes bytes{static_cast<std::byte*>(array.data()), 40};
    EXPECT_OK(backend->Broadcast(at.lane(), bytes, 0).Wait(Soon()));
    EXPECT_OK(at.Await(*backend));
    if (rank == 0) {
      array.Launch(Floats(10, 7.0f), at.place.stream);
      EXPECT_OK(backend->Broadcast(at.lane(), bytes, 0).Wait(Soon()));
      EXPECT_OK(at.Await(*backend));
      backend.reset();
      return;
    }
    testing::DeviceGate gate;
    gate.Close(1, at.place.stream);
    EXPECT_OK(backend->Broadcast(at.lane(), bytes, 0).Wait(Soon()));
    const auto is_ending = [&] {
      return nccl_emulation().counts().communicators < communicators + 2 ||
             nccl_emulation().rabit_emulated_nccl_calls("ncclCommFinalize") > finalized;
    };
    while (!is_ending()) std::this_thread::yield();
    gate.Open();
    const Status status = at.Await(*backend, After(std::chrono::seconds(1)));
    EXPECT_OK(status);
    if (!status.ok()) return backend->Abort(status);
    EXPECT_EQ(array.Read(at.place.stream), Floats(10, 7.0f));
  });
}

TEST(NcclBackend, an_error_that_comes_later_ends_the_wait) {
  EmulatedTrouble trouble(1);
  const auto backends = MakeRaw(2);
  std::vector<std::unique_ptr<OnDevice>> ranks;
  for (const int rank : {0, 1}) ranks.push_back(std::make_unique<OnDevice>(rank, 2));
  RunRanks(2, [&](int rank) {
    OnDevice& at = *ranks[static_cast<size_t>(rank)];
    const DeviceArray<float> array(rank, 10);
    NcclBackend& backend = *backends[static_cast<size_t>(rank)];
    const TensorView view{array.data(), 10, DType::kFloat32, {}};
    EXPECT_OK(backend.Allreduce(at.lane(), view, ReduceOp::kSum).Wait(Soon()));
    EXPECT_OK(at.Await(backend));
  });
  OnDevice& at = *ranks[0];
  const DeviceArray<float> array(0, 10);
  nccl_emulation().rabit_emulated_nccl_break(0, nccl::kRemoteError);
  EXPECT_OK(backends[0]
                ->Broadcast(at.lane(), {static_cast<std::byte*>(array.data()), 40}, 0)
                .Wait(Soon()));

  const Status status = at.Await(*backends[0]);
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_TRUE(Has(status.message(), "remote process exited")) << status.message();
  EXPECT_TRUE(Has(status.message(), "NCCL_DEBUG=WARN"));
  backends[0]->Abort(PeerLost(1, "rank 1 is lost"));
  EXPECT_OK(at.Drain());
  EXPECT_EQ(at.Await(*backends[0]).message(), "rank 1 is lost");
}

TEST(NcclBackend, a_rank_that_does_not_come_is_waited_for_until_the_deadline) {
  EmulatedTrouble trouble(1);
  const auto counts = nccl_emulation().counts();
  {  // NCCL writes the handle when it is given up
    const auto backends = MakeRaw(2);
    OnDevice at(0, 2);
    const DeviceArray<float> array(0, 10);
    const Bytes bytes{static_cast<std::byte*>(array.data()), 40};
    const Status status = backends[0]
                              ->Broadcast(at.lane(After(std::chrono::milliseconds(50))), bytes, 0)
                              .Wait(Soon());
    EXPECT_EQ(status.code(), Code::kTimedOut);
    EXPECT_TRUE(Has(status.message(), "the NCCL communicator of group 0 with ranks 0, 1"))
        << status.message();
  }
  EXPECT_EQ(nccl_emulation().counts().communicators, counts.communicators);
  EXPECT_EQ(nccl_emulation().counts().violations, counts.violations);
}

TEST(NcclBackend, a_rank_that_waits_for_an_identity_gives_up_when_it_is_told) {
  EmulatedTrouble trouble(1);
  const auto backends = MakeRaw(2);
  OnDevice at(1, 2);
  const DeviceArray<float> array(1, 10);
  std::thread stops([&] { backends[1]->Abort(Aborted("rank 0 is lost")); });

  const Status status = backends[1]
                            ->Broadcast(at.lane(), {static_cast<std::byte*>(array.data()), 40}, 0)
                            .Wait(Soon());

  stops.join();
  EXPECT_EQ(status.message(), "rank 0 is lost");
}

TEST(NcclBackend, two_ranks_on_one_device_are_told_what_nccl_wants) {
  EmulatedTrouble trouble(1);
  const auto backends = MakeRaw(2);
  RunRanks(2, [&](int rank) {
    OnDevice at(0, 2);
    Group group = WorldOf(2, rank);
    const DeviceArray<float> array(0, 10);
    LaneContext lane{0, Tag{0}, Soon(), group, Waiter::kBackground, {}, &at.place};
    const Status status = backends[static_cast<size_t>(rank)]
                              ->Broadcast(lane, {static_cast<std::byte*>(array.data()), 40}, 0)
                              .Wait(Soon());
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(Has(status.message(), "Duplicate GPU detected")) << status.message();
    EXPECT_TRUE(Has(status.message(), "another GPU for every rank of a host"));
  });
}

TEST(NcclBackend, a_rank_has_one_device_in_a_group) {
  EmulatedTrouble trouble(1);
  const auto backends = MakeRaw(1);
  for (const int device : {0, 1}) {
    OnDevice at(0, 1);
    at.place.device = device;
    const DeviceArray<float> array(device, 10);
    const DeviceStream stream = MakeStream(at.driver, device).value();
    at.place.stream = stream.get();
    const Status status = backends[0]
                              ->Broadcast(at.lane(), {static_cast<std::byte*>(array.data()), 40}, 0)
                              .Wait(Soon());
    EXPECT_EQ(status.ok(), device == 0) << status.message();
    // What has been launched works in the array.
    emulation().rabit_emulated_finish(device, static_cast<cuda::Stream>(stream.get()));
    if (device == 0) continue;
    EXPECT_TRUE(Has(status.message(), "the tensor is on cuda:1, and rank 0 has brought cuda:0"));
    EXPECT_TRUE(Has(status.message(), "torch.cuda.set_device(0)"));
    emulation().rabit_emulated_finish(0, nullptr);
  }
}

// An allreduce in which a function of NCCL fails, of one rank alone: all calls come in one order.
Status FailedAt(const char* function) {
  EmulatedTrouble trouble(1);
  const auto backends = MakeRaw(1);
  OnDevice at(0, 1, 0.5);
  const DeviceArray<float> array(0, 10);
  nccl_emulation().rabit_emulated_nccl_fail(function, 0, nccl::kInternalError);
  Status status =
      backends[0]
          ->Allreduce(at.lane(), {array.data(), 10, DType::kFloat32, {}}, ReduceOp::kSum)
          .Wait(Soon());
  nccl_emulation().rabit_emulated_nccl_fail(function, 0, nccl::kSuccess);
  backends[0]->Abort(Aborted("done"));
  emulation().rabit_emulated_finish(0, static_cast<cuda::Stream>(at.place.stream));
  return status;
}

TEST(NcclBackend, a_failure_at_any_call_says_which_call_and_why) {
  for (const char* const function :
       {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclGroupStart",
        "ncclGroupEnd", "ncclAllReduce", "ncclRedOpCreatePreMulSum", "ncclRedOpDestroy"}) {
    const auto counts = nccl_emulation().counts();
    const Status status = FailedAt(function);
    EXPECT_EQ(status.code(), Code::kInternal) << function;
    EXPECT_TRUE(Has(status.message(), std::string(function) + " was told to fail"))
        << status.message();
    EXPECT_EQ(nccl_emulation().counts().communicators, counts.communicators) << function;
    EXPECT_EQ(nccl_emulation().counts().operators, counts.operators) << function;
  }
}

TEST(NcclBackend, the_reason_of_the_first_rank_reaches_those_that_wait_for_its_identity) {
  EmulatedTrouble trouble(1);
  const auto backends = MakeRaw(2);
  nccl_emulation().rabit_emulated_nccl_fail("ncclGetUniqueId", 0, nccl::kSystemError);
  RunRanks(2, [&](int rank) {
    OnDevice at(rank, 2);
    const DeviceArray<float> array(rank, 10);
    const Status status = backends[static_cast<size_t>(rank)]
                              ->Broadcast(at.lane(), {static_cast<std::byte*>(array.data()), 40}, 0)
                              .Wait(Soon());
    EXPECT_TRUE(Has(status.message(), "ncclGetUniqueId was told to fail")) << status.message();
    EXPECT_EQ(status.culprit(), rank == 1 ? 0 : -1);
  });
}

TEST(NcclLibrary, an_old_one_is_refused_with_what_to_install) {
  nccl_emulation().rabit_emulated_nccl_version(21302);
  const Status status = NcclLibrary::Load(RABIT_TEST_NCCL).status();
  nccl_emulation().rabit_emulated_nccl_version(22703);

  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_TRUE(Has(status.message(), "NCCL 2.13.2 of ")) << status.message();
  EXPECT_TRUE(Has(status.message(), "nvidia-nccl-cu13"));
  EXPECT_EQ(OpenEmulatedNccl()->version(), "2.27.3");
}

TEST(NcclLibrary, one_without_a_function_is_refused) {
  const Status status = NcclLibrary::Load(RABIT_TEST_CUDA).status();

  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_TRUE(Has(status.message(), "has no function ncclGetVersion")) << status.message();
}

TEST(NcclLibrary, every_function_is_called) {
  for (const char* const function : {"ncclAllReduce", "ncclRedOpDestroy"}) {
    EXPECT_FALSE(FailedAt(function).ok());
  }
  EmulatedTrouble trouble(1);
  auto backends = MakeHosted(2);
  RunRanks(2, [&](int rank) {
    testing::Member me(*backends[static_cast<size_t>(rank)], WorldOf(2, rank), 0);
    testing::CheckEverything(me);
    std::vector<int32_t> in(4, 1), out(2);
    const int64_t parts[] = {2, 2};
    EXPECT_OK(me.backend()
                  .ReduceScatter(me.Next(), testing::ViewOf(in), testing::ViewOf(out), parts,
                                 ReduceOp::kSum)
                  .Wait(Soon()));
    EXPECT_EQ(out, std::vector<int32_t>(2, 2));
    const int64_t bytes[] = {8, 8};
    EXPECT_OK(me.backend()
                  .Allgather(me.Next(), testing::BytesOf(out), testing::BytesOf(in), bytes)
                  .Wait(Soon()));
    EXPECT_EQ(in, std::vector<int32_t>(4, 2));
  });
  backends.clear();
  EXPECT_EQ(nccl_emulation().counts().violations, 0);
#define RABIT_CALLED(name, ...) \
  EXPECT_GT(nccl_emulation().rabit_emulated_nccl_calls(#name), 0u) << #name;
  RABIT_NCCL_FUNCTIONS(RABIT_CALLED)
#undef RABIT_CALLED
}

}  // namespace
}  // namespace rabit

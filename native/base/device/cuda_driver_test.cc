#include "base/device/cuda_driver.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "testing/emulated_driver.h"
#include "testing/sanitizer.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::DeviceArray;
using testing::EmulatedTrouble;
using testing::emulation;
using testing::OpenEmulatedDriver;

std::vector<int> Numbers(int first, size_t count) {
  std::vector<int> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = first + static_cast<int>(i);
  return numbers;
}

// A pinned array and the streams and events that a copy there and back takes.
struct Copies {
  explicit Copies(size_t bytes) : driver(OpenEmulatedDriver()) {
    for (auto* each : {&in, &out}) *each = std::move(*MakeStream(driver, 1));
    for (auto* each : {&ready, &copied}) *each = std::move(*MakeEvent(driver, 1));
    pinned = std::move(*MakePinned(driver, 1, bytes));
  }
  int* host() const { return static_cast<int*>(pinned.get()); }

  std::shared_ptr<DeviceDriver> driver;
  DeviceStream in, out;
  DeviceEvent ready, copied;
  PinnedMemory pinned;
};

TEST(CudaDriver, copies_what_a_stream_computes_after_its_event) {
  EmulatedTrouble trouble(7, 2000);
  constexpr size_t kCount = 1000;
  Copies copies(kCount * sizeof(int));
  DeviceArray<int> from(1, kCount);
  DeviceArray<int> to(1, kCount);
  DeviceDriver& driver = *copies.driver;

  from.Launch(Numbers(5, kCount));
  ASSERT_OK(driver.Record(1, copies.ready.get(), nullptr));
  ASSERT_OK(driver.Await(1, copies.in.get(), copies.ready.get()));
  ASSERT_OK(
      driver.CopyToHost(1, copies.in.get(), copies.host(), from.data(), kCount * sizeof(int)));
  ASSERT_OK(driver.Record(1, copies.copied.get(), copies.in.get()));
  ASSERT_OK(WaitOver(driver, 1, copies.copied.get(), After(std::chrono::seconds(60))));
  for (size_t i = 0; i < kCount; ++i) copies.host()[i] *= 2;
  ASSERT_OK(
      driver.CopyToDevice(1, copies.out.get(), to.data(), copies.host(), kCount * sizeof(int)));
  ASSERT_OK(driver.Record(1, copies.copied.get(), copies.out.get()));
  ASSERT_OK(driver.Await(1, nullptr, copies.copied.get()));

  const std::vector<int> seen = to.Read();
  for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(seen[i], 2 * (5 + static_cast<int>(i)));
  EXPECT_EQ(emulation().counts().violations, 0);
}

TEST(CudaDriver, everything_it_creates_is_given_back) {
  const auto before = emulation().counts();
  {
    Copies copies(100);
    EXPECT_EQ(emulation().counts().pinned, before.pinned + 1);
    EXPECT_EQ(emulation().counts().events, before.events + 2);
    EXPECT_EQ(emulation().counts().contexts, before.contexts + 1);
  }
  EXPECT_EQ(emulation().counts().pinned, before.pinned);
  EXPECT_EQ(emulation().counts().events, before.events);
  EXPECT_EQ(emulation().counts().contexts, before.contexts);
}

TEST(CudaDriver, a_wait_for_work_that_does_not_end_ends_at_its_deadline) {
  EmulatedTrouble trouble(1);
  Copies copies(4);
  std::atomic<bool> may_end{false};
  emulation().rabit_emulated_launch(
      1, static_cast<cuda::Stream>(copies.in.get()),
      [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &may_end);
  ASSERT_OK(copies.driver->Record(1, copies.ready.get(), copies.in.get()));

  const Status status =
      WaitOver(*copies.driver, 1, copies.ready.get(), After(std::chrono::milliseconds(20)));
  may_end.store(true);
  may_end.notify_all();

  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_NE(status.message().find("cuda device 1"), std::string::npos);
  EXPECT_OK(WaitOver(*copies.driver, 1, copies.ready.get(), After(std::chrono::seconds(60))));
}

TEST(CudaDriver, a_failure_at_any_call_says_which_call_and_why) {
  Copies copies(64);
  DeviceArray<int> array(1, 16);
  DeviceDriver& driver = *copies.driver;
  const std::vector<std::pair<const char*, std::function<Status()>>> calls = {
      {"cuStreamCreate", [&] { return MakeStream(copies.driver, 1).status(); }},
      {"cuEventCreate", [&] { return MakeEvent(copies.driver, 1).status(); }},
      {"cuMemHostAlloc", [&] { return MakePinned(copies.driver, 1, 8).status(); }},
      {"cuEventRecord", [&] { return driver.Record(1, copies.ready.get(), nullptr); }},
      {"cuEventQuery", [&] { return driver.IsOver(1, copies.ready.get()).status(); }},
      {"cuStreamWaitEvent", [&] { return driver.Await(1, nullptr, copies.ready.get()); }},
      {"cuStreamIsCapturing", [&] { return driver.CheckRuns(1, nullptr); }},
      {"cuThreadExchangeStreamCaptureMode", [&] { return driver.CheckRuns(1, nullptr); }},
      {"cuMemAlloc_v2", [&] { return MakeMemory(copies.driver, 1, 8).status(); }},
      {"cuMemcpyDtoDAsync_v2",
       [&] { return driver.CopyWithin(1, nullptr, array.data(), array.data(), 64); }},
      {"cuMemcpyDtoHAsync_v2",
       [&] { return driver.CopyToHost(1, nullptr, copies.host(), array.data(), 64); }},
      {"cuMemcpyHtoDAsync_v2",
       [&] { return driver.CopyToDevice(1, nullptr, array.data(), copies.host(), 64); }},
      {"cuCtxPushCurrent_v2", [&] { return driver.CheckRuns(1, nullptr); }},
      {"cuDevicePrimaryCtxRetain", [] { return OpenEmulatedDriver()->CheckRuns(0, nullptr); }},
      {"cuDeviceGet", [] { return OpenEmulatedDriver()->CheckRuns(0, nullptr); }},
  };
  for (const auto& [function, call] : calls) {
    EmulatedTrouble trouble(1);
    trouble.Fail(function, 0, cuda::kOutOfMemory);
    const Status status = call();
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << function;
    const std::string name = std::string(function).substr(0, std::string(function).find('_'));
    EXPECT_NE(status.message().find(name + " on CUDA device"), std::string::npos) << function;
    EXPECT_NE(status.message().find("CUDA_ERROR_OUT_OF_MEMORY (2, out of memory)"),
              std::string::npos);
    EXPECT_OK(call()) << function;
  }
  emulation().rabit_emulated_finish(1, nullptr);
  EXPECT_EQ(emulation().counts().violations, 0);
}

TEST(CudaDriver, copies_within_a_device_follow_what_is_on_the_stream) {
  EmulatedTrouble trouble(3, 300);
  const auto driver = OpenEmulatedDriver();
  const int64_t before = emulation().counts().memory;
  Result<DeviceMemory> memory = MakeMemory(driver, 1, 16 * sizeof(int));
  ASSERT_OK(memory);
  const DeviceArray<int> from(1, 16);
  const DeviceArray<int> to(1, 16);
  from.Launch(std::vector<int>(16, 5));
  ASSERT_OK(driver->CopyWithin(1, nullptr, memory->get(), from.data(), 16 * sizeof(int)));
  from.Launch(std::vector<int>(16, 6));
  ASSERT_OK(driver->CopyWithin(1, nullptr, to.data(), memory->get(), 16 * sizeof(int)));

  EXPECT_EQ(emulation().counts().memory, before + 1);
  *memory = DeviceMemory();  // waits for the copies
  EXPECT_EQ(to.Read(), std::vector<int>(16, 5));
  EXPECT_EQ(emulation().counts().memory, before);
  EXPECT_EQ(emulation().counts().violations, 0);
}

TEST(CudaDriver, calls_of_others_are_made_with_the_device_current) {
  const auto driver = OpenEmulatedDriver();
  EXPECT_EQ(emulation().rabit_emulated_current_device(), -1);
  EXPECT_OK(driver->Run(1, [] {
    EXPECT_EQ(emulation().rabit_emulated_current_device(), 1);
    return Status();
  }));
  EXPECT_EQ(driver->Run(0, [] { return Internal("of the call"); }).message(), "of the call");
  EXPECT_EQ(emulation().rabit_emulated_current_device(), -1);
}

TEST(CudaDriver, work_that_fails_later_fails_the_wait_for_it) {
  EmulatedTrouble trouble(1);
  Copies copies(64);
  DeviceArray<int> array(1, 16);
  trouble.Fail("copy", 0, cuda::kIllegalAddress);

  EXPECT_OK(copies.driver->CopyToHost(1, copies.in.get(), copies.host(), array.data(), 64));
  (void)copies.driver->Record(1, copies.ready.get(), copies.in.get());
  const Status status =
      WaitOver(*copies.driver, 1, copies.ready.get(), After(std::chrono::seconds(60)));

  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("(700, "), std::string::npos);
  EXPECT_NE(status.message().find("CUDA_LAUNCH_BLOCKING"), std::string::npos);
}

TEST(CudaDriver, memory_that_is_not_pinned_is_no_end_of_a_copy) {
  Copies copies(4);
  DeviceArray<int> array(1, 1);
  int on_the_stack = 0;

  const Status status = copies.driver->CopyToHost(1, nullptr, &on_the_stack, array.data(), 4);

  EXPECT_EQ(status.code(), Code::kInternal);
}

TEST(CudaDriver, a_device_that_there_is_not_is_named_with_how_many_there_are) {
  const Status status = MakeStream(OpenEmulatedDriver(), 2).status();

  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("no CUDA device 2: the driver has 2"), std::string::npos);
}

TEST(CudaDriver, a_graph_that_is_captured_is_refused_with_advice) {
  EmulatedTrouble trouble(1);
  emulation().rabit_emulated_capture(1);

  const Status status = OpenEmulatedDriver()->CheckRuns(0, nullptr);

  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("outside of the capture"), std::string::npos);
}

// As torch captures them: any thread's call that might wait for the device loses the graph.
TEST(CudaDriver, a_graph_that_another_thread_captures_is_not_lost) {
  EmulatedTrouble trouble(1);
  Copies copies(4);
  DeviceDriver& driver = *copies.driver;
  const auto violations = emulation().counts().violations;
  emulation().rabit_emulated_capture(1);

  EXPECT_OK(driver.Record(1, copies.ready.get(), copies.in.get()));
  EXPECT_OK(driver.Await(1, copies.out.get(), copies.ready.get()));
  EXPECT_OK(WaitOver(driver, 1, copies.ready.get(), After(std::chrono::seconds(60))));
  EXPECT_OK(MakePinned(copies.driver, 1, 8));
  EXPECT_OK(MakeMemory(copies.driver, 1, 8));

  EXPECT_EQ(emulation().counts().violations, violations);
}

// Of a stream that the default one waits for.
TEST(CudaDriver, a_capture_that_may_not_be_asked_for_is_refused_as_well) {
  EmulatedTrouble trouble(1);
  trouble.Fail("cuStreamIsCapturing", 0, cuda::kCaptureImplicit);

  const Status status = OpenEmulatedDriver()->CheckRuns(0, nullptr);

  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("outside of the capture"), std::string::npos);
}

TEST(CudaDriver, the_default_stream_has_the_names_that_dlpack_gives_it) {
  EmulatedTrouble trouble(1);
  Copies copies(4);
  for (const uintptr_t name : {0, 1, 2}) {
    void* const stream = reinterpret_cast<void*>(name);
    EXPECT_OK(copies.driver->CheckRuns(1, stream));
    EXPECT_OK(copies.driver->Record(1, copies.ready.get(), stream));
    EXPECT_OK(copies.driver->Await(1, stream, copies.ready.get()));
  }
}

TEST(CudaDriver, an_event_is_of_one_device) {
  EmulatedTrouble trouble(1);
  Copies copies(4);

  const Status status = copies.driver->Record(0, copies.ready.get(), nullptr);

  EXPECT_NE(status.message().find("cuEventRecord on CUDA device 0"), std::string::npos);
  EXPECT_OK(copies.driver->Await(0, nullptr, copies.ready.get()));
}

TEST(CudaDriver, a_library_that_is_missing_or_is_another_is_refused_with_advice) {
  const Status missing = LoadCudaDriver("librabit-no-such-cuda.so").status();
  EXPECT_EQ(missing.code(), Code::kUnsupported);
  EXPECT_NE(missing.message().find("librabit-no-such-cuda.so"), std::string::npos);
  EXPECT_NE(missing.message().find("install it"), std::string::npos);

  const Status other = LoadCudaDriver("libm.so.6").status();
  EXPECT_EQ(other.code(), Code::kUnsupported);
  EXPECT_NE(other.message().find("libm.so.6 has no function cuInit"), std::string::npos);
}

TEST(CudaDriver, a_driver_without_a_device_is_refused_with_advice) {
  EmulatedTrouble trouble(1);
  emulation().rabit_emulated_devices(0);

  const Status status = LoadCudaDriver(RABIT_TEST_CUDA).status();

  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("cuInit of "), std::string::npos);
  EXPECT_NE(status.message().find("CUDA_VISIBLE_DEVICES"), std::string::npos);
}

TEST(CudaDriver, a_start_that_fails_names_the_call) {
  for (const char* function : {"cuDriverGetVersion", "cuDeviceGetCount"}) {
    EmulatedTrouble trouble(1);
    trouble.Fail(function, 0, cuda::kInvalidValue);
    const Status status = LoadCudaDriver(RABIT_TEST_CUDA).status();
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find(std::string(function) + " of "), std::string::npos);
  }
}

TEST(CudaDriver, describes_what_was_loaded) {
  JsonWriter json;
  json.BeginObject();
  OpenEmulatedDriver()->Write(json);
  const std::string text = json.EndObject().Take();

  EXPECT_NE(text.find("\"version\":\"12.8\""), std::string::npos);
  EXPECT_NE(text.find("\"devices\":2"), std::string::npos);
  EXPECT_NE(text.find("rabit_test_cuda"), std::string::npos);
}

TEST(CudaDriver, a_child_of_a_fork_is_told_to_use_spawn) {
  if (testing::kIsThreadSanitized) return testing::SkipTest("a fork with threads");
  const std::shared_ptr<DeviceDriver> driver = OpenEmulatedDriver();
  const pid_t child = ::fork();
  if (child == 0) {
    const Status status = driver->CheckRuns(0, nullptr);
    const bool is_told = status.message().find("'spawn'") != std::string::npos;
    ::_exit(is_told ? 0 : 1);
  }
  int ended = -1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
}

TEST(CudaDriver, a_child_that_loads_it_is_told_to_use_spawn) {
  if (testing::kIsThreadSanitized) return testing::SkipTest("a fork with threads");
  const std::shared_ptr<DeviceDriver> driver = OpenEmulatedDriver();
  const pid_t child = ::fork();
  if (child == 0) {
    const Status status = LoadCudaDriver(RABIT_TEST_CUDA).status();
    const bool is_told = status.message().find("'spawn'") != std::string::npos;
    ::_exit(is_told ? 0 : 1);
  }
  int ended = -1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
}

TEST(CudaDriver, every_function_of_the_table_is_called) {
  {
    EmulatedTrouble trouble(1);
    Copies copies(4);
    DeviceArray<int> array(1, 1);
    DeviceDriver& driver = *copies.driver;
    EXPECT_OK(driver.CheckRuns(1, nullptr));
    EXPECT_OK(driver.CopyToHost(1, copies.in.get(), copies.host(), array.data(), 4));
    EXPECT_OK(driver.CopyToDevice(1, copies.in.get(), array.data(), copies.host(), 4));
    EXPECT_OK(driver.Record(1, copies.copied.get(), copies.in.get()));
    EXPECT_OK(driver.Await(1, copies.out.get(), copies.copied.get()));
    EXPECT_OK(WaitOver(driver, 1, copies.copied.get(), After(std::chrono::seconds(60))));
    const Result<DeviceMemory> memory = MakeMemory(copies.driver, 1, sizeof(int));
    ASSERT_OK(memory);
    EXPECT_OK(driver.CopyWithin(1, nullptr, memory->get(), array.data(), sizeof(int)));
    emulation().rabit_emulated_finish(1, static_cast<cuda::Stream>(copies.out.get()));
    trouble.Fail("cuEventRecord", 0, cuda::kInvalidValue);
    EXPECT_FALSE(driver.Record(1, copies.copied.get(), nullptr).ok());
  }
#define RABIT_CUDA_NAME(name, ...) #name,
  for (const char* function : {RABIT_CUDA_FUNCTIONS(RABIT_CUDA_NAME)}) {
    EXPECT_GE(emulation().rabit_emulated_calls(function), uint64_t{1}) << function;
  }
#undef RABIT_CUDA_NAME
}

}  // namespace
}  // namespace rabit

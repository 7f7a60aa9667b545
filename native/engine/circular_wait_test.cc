// Ranks that wait for each other; they are threads.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "testing/engine_job.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::Has;
using testing::JobOptions;
using testing::MakeRequest;
using testing::RunRanks;
using testing::Soon;
using testing::SubmitOne;
using testing::TestJob;

JobOptions WatchedJob(int fan_out) {
  JobOptions options;
  options.engine.stall_warning_ms = options.controller.stall_warning_ms = 40;
  options.engine.log_level = LogLevel::kOff;
  options.controller.second_look_ms = 60;
  options.fan_out = fan_out;
  return options;
}

// As Python waits: without an end, in slices, so that it sees signals.
Status WaitInSlices(Engine& engine, Handle handle) {
  Status status;
  do {
    status = engine.WaitSlice(handle, After(std::chrono::milliseconds(10)));
  } while (status.code() == Code::kTimedOut);
  return status;
}

TEST(CircularWait, ends_as_a_mismatch_that_names_both_sides) {
  for (const int fan_out : {0, 1}) {
    for (const bool is_sliced : {false, true}) {
      TestJob job(3, WatchedJob(fan_out));
      std::vector<std::unique_ptr<Engine>> engines;
      for (int rank = 0; rank < 3; ++rank) engines.push_back(job.Start(rank));
      RunRanks(3, [&](int rank) {
        Engine& engine = *engines[static_cast<size_t>(rank)];
        std::vector<float> values = {1.0f};
        const std::string name = rank == 0 ? "a" : "b";
        const Handle handle = SubmitOne(engine, MakeRequest(name, Kind::kAllreduce, values));
        const Status status = is_sliced ? WaitInSlices(engine, handle)
                                        : engine.Wait(handle, After(std::chrono::hours(24)));
        EXPECT_EQ(status.code(), Code::kMismatch) << status;
        EXPECT_TRUE(Has(status.message(), "rank 0 waits for allreduce 'a', which rank 1"))
            << status;
        EXPECT_TRUE(Has(status.message(), "rank 1 waits for allreduce 'b', which rank 0"))
            << status;
      });
    }
  }
}

// The other thread has submitted something before, and will again.
TEST(CircularWait, is_none_while_another_thread_of_a_rank_computes) {
  TestJob job(2, WatchedJob(0));
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 2; ++rank) engines.push_back(job.Start(rank));
  std::vector<float> values[2][3] = {{{1}, {1}, {1}}, {{1}, {1}, {1}}};
  const auto run = [&](size_t rank, const char* name, size_t place) {
    Request request = MakeRequest(name, Kind::kAllreduce, values[rank][place]);
    EXPECT_OK(WaitInSlices(*engines[rank], SubmitOne(*engines[rank], std::move(request))));
  };
  std::atomic<bool> has_begun{false};
  std::thread second([&] {
    run(0, "first", 0);
    has_begun.store(true);
    const Deadline deadline = Soon();
    while (!Has(engines[0]->StatisticsJson(), "\"stall_reports\":5,")) {
      ASSERT_TRUE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::yield();
    }
    run(0, "b", 1);
  });
  RunRanks(2, [&](int rank) {
    if (rank == 1) {
      run(1, "first", 0);
      run(1, "b", 1);
      run(1, "a", 2);
    } else {
      while (!has_begun.load()) std::this_thread::yield();
      run(0, "a", 2);
    }
  });
  second.join();
}

// A wait that has an end is not one for good.
TEST(CircularWait, is_none_while_a_caller_waits_for_a_time_only) {
  TestJob job(2, WatchedJob(0));
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 2; ++rank) engines.push_back(job.Start(rank));
  RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    std::vector<float> a = {1.0f}, b = {1.0f};
    if (rank == 1) {
      EXPECT_OK(WaitInSlices(engine, SubmitOne(engine, MakeRequest("b", Kind::kAllreduce, b))));
      EXPECT_OK(WaitInSlices(engine, SubmitOne(engine, MakeRequest("a", Kind::kAllreduce, a))));
      return;
    }
    const Handle handle = SubmitOne(engine, MakeRequest("a", Kind::kAllreduce, a));
    while (!Has(engine.StatisticsJson(), "\"stall_reports\":5,")) {
      EXPECT_EQ(engine.Wait(handle, After(std::chrono::milliseconds(10))).code(), Code::kTimedOut);
    }
    EXPECT_OK(WaitInSlices(engine, SubmitOne(engine, MakeRequest("b", Kind::kAllreduce, b))));
    EXPECT_OK(WaitInSlices(engine, handle));
  });
}

}  // namespace
}  // namespace rabit

#include "backend/ps/parameter_store.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/ps/ps_backend.h"
#include "base/json_writer.h"
#include "testing/inproc_transport.h"
#include "testing/run_ranks.h"
#include "testing/server_threads.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

PushHeader UpdateOf(PushMode mode, int64_t count) {
  return {.tag = 0,
          .count = count,
          .chunk_count = count,
          .dtype = DType::kFloat32,
          .op = ReduceOp::kSum,
          .mode = mode,
          .key = 7};
}

Bytes BytesOf(std::vector<float>& values) { return std::as_writable_bytes(std::span(values)); }

TEST(ParameterStore, the_first_to_fill_counts_and_all_get_what_is_kept) {
  ParameterStore store(2);
  std::vector<float> first = {1, 2}, second = {5, 6}, delta = {10, 20};

  EXPECT_OK(store.Update(UpdateOf(PushMode::kFill, 2), 0, BytesOf(first)));
  EXPECT_OK(store.Update(UpdateOf(PushMode::kAdd, 2), 0, BytesOf(delta)));
  EXPECT_OK(store.Update(UpdateOf(PushMode::kFill, 2), 0, BytesOf(second)));

  EXPECT_TRUE((delta == std::vector<float>{11, 22}));
  EXPECT_TRUE((second == std::vector<float>{11, 22}));
}

TEST(ParameterStore, updates_that_do_not_fit_are_refused) {
  ParameterStore store(2);
  std::vector<float> values = {1, 2}, more = {1, 2, 3};
  EXPECT_TRUE(testing::Has(store.Update(UpdateOf(PushMode::kAdd, 2), 0, BytesOf(values)).message(),
                           "fill it first"));
  EXPECT_OK(store.Update(UpdateOf(PushMode::kFill, 2), 0, BytesOf(values)));
  EXPECT_TRUE(testing::Has(store.Update(UpdateOf(PushMode::kFill, 3), 0, BytesOf(more)).message(),
                           "updates 3 elements of a tensor of which 8 bytes are kept"));
}

TEST(ParameterStore, whoever_has_not_begun_is_the_slowest) {
  ParameterStore store(2);
  EXPECT_EQ(store.Advance(7, 0, {1}), 1);
  EXPECT_EQ(store.Advance(7, 0, {2}), 2);
  EXPECT_EQ(store.Advance(7, 1, {1}), 0);
  EXPECT_EQ(store.Advance(7, 0, {2, true}), 1);
}

TEST(ParameterStore, tensors_have_clocks_of_their_own) {
  ParameterStore store(2);
  EXPECT_EQ(store.Advance(7, 1, {5}), 5);
  EXPECT_EQ(store.Advance(8, 0, {5}), 5);
  EXPECT_EQ(store.Advance(7, 0, {5}), 0);
}

TEST(ParameterStore, whoever_has_finished_holds_up_nobody) {
  ParameterStore store(2);
  EXPECT_EQ(store.Advance(7, 0, {5}), 5);
  EXPECT_EQ(store.Advance(7, 1, {-1}), 0);
  EXPECT_EQ(store.Advance(7, 0, {5, true}), 0);
}

// A thread of it may ask for a step that it has said before it left.
TEST(ParameterStore, a_question_of_whoever_has_left_does_not_bring_it_back) {
  ParameterStore store(2);
  EXPECT_EQ(store.Advance(7, 0, {1}), 1);
  EXPECT_EQ(store.Advance(7, 0, {-1}), 0);
  EXPECT_EQ(store.Advance(7, 0, {1, true}), 0);
  EXPECT_EQ(store.Advance(7, 1, {9}), 0);  // the only one that is left
}

// Workers and servers in one process.
struct UpdatingJob {
  UpdatingJob(int workers, int servers) : fabric(workers + servers) {
    threads = std::make_unique<testing::ServerThreads>(fabric, workers, servers, 1, true);
    for (int rank = 0; rank < workers; ++rank) {
      backends.push_back(
          std::make_unique<PsBackend>(fabric.Connect(rank), Places::Alike(workers, servers),
                                      testing::NodeNames(servers), PsStreams{1, true}));
    }
  }
  ~UpdatingJob() { backends.clear(); }  // before the servers

  Status Update(int rank, PushMode mode, std::vector<float>& values) {
    return backends[static_cast<size_t>(rank)]->Update(
        mode, 99, {values.data(), static_cast<int64_t>(values.size()), DType::kFloat32, {}},
        testing::Soon());
  }
  Status Advance(int rank, int64_t step, int64_t staleness, uint64_t key = 0) {
    int64_t clock[2] = {step, staleness};
    return backends[static_cast<size_t>(rank)]->Update(
        PushMode::kClock, key, {clock, 2, DType::kInt64, {}}, testing::Soon());
  }

  testing::InprocFabric fabric;
  std::unique_ptr<testing::ServerThreads> threads;
  std::vector<std::unique_ptr<PsBackend>> backends;
};

TEST(PsUpdates, no_update_is_lost_or_doubled) {
  constexpr int kWorkers = 4, kSteps = 25;
  for (const size_t count : {size_t{1}, size_t{9000}, size_t{400'001}}) {
    UpdatingJob job(kWorkers, 3);
    testing::RunRanks(kWorkers, [&](int rank) {
      std::vector<float> values(count, 5);
      EXPECT_OK(job.Update(rank, PushMode::kFill, values));
      for (int step = 0; step < kSteps; ++step) {
        values.assign(count, 1);
        EXPECT_OK(job.Update(rank, PushMode::kAdd, values));
      }
    });
    std::vector<float> now(count);
    EXPECT_OK(job.Update(0, PushMode::kFill, now));
    EXPECT_TRUE(now == std::vector<float>(count, 5 + kWorkers * kSteps)) << count;
  }
}

// A step of the slow worker begins only when every other one has done three more.
TEST(PsUpdates, a_worker_that_is_three_times_slower_slows_down_nobody) {
  constexpr int kWorkers = 4, kSlowSteps = 10;
  UpdatingJob job(kWorkers, 2);
  std::array<std::atomic<int>, kWorkers - 1> done{};

  testing::RunRanks(kWorkers, [&](int rank) {
    std::vector<float> values(5000, 0);
    EXPECT_OK(job.Update(rank, PushMode::kFill, values));
    const bool is_slow = rank == kWorkers - 1;
    const Deadline deadline = testing::Soon();
    for (int step = 1; step <= (is_slow ? kSlowSteps : 3 * kSlowSteps); ++step) {
      for (size_t other = 0; is_slow && other < done.size(); ++other) {
        for (int seen = done[other].load(); seen < 3 * step; seen = done[other].load()) {
          ASSERT_TRUE(std::chrono::steady_clock::now() < deadline);
          std::this_thread::yield();
        }
      }
      values.assign(5000, 1);
      EXPECT_OK(job.Update(rank, PushMode::kAdd, values));
      EXPECT_OK(job.Advance(rank, step, -1));
      if (!is_slow) done[static_cast<size_t>(rank)].store(step);
    }
  });

  JsonWriter json;
  job.backends[0]->WriteStatistics(json);
  EXPECT_TRUE(testing::Has(json.Take(), "\"steps\":30,\"steps_waited\":0"));
}

TEST(PsUpdates, nobody_is_ever_further_ahead_than_the_bound) {
  constexpr int64_t kSteps = 60;
  for (const int64_t staleness : {0, 1, 3}) {
    UpdatingJob job(3, 1);
    std::array<std::atomic<int64_t>, 3> finished{};
    testing::RunRanks(3, [&](int rank) {
      for (int64_t step = 1; step <= kSteps; ++step) {
        finished[static_cast<size_t>(rank)].store(step);
        EXPECT_OK(job.Advance(rank, step, staleness));
        for (const auto& other : finished) EXPECT_LE(step - other.load(), staleness);
      }
      // Whoever has done all its steps does not hold up those that have some left.
      EXPECT_OK(job.Advance(rank, -1, staleness));
    });
  }
}

TEST(PsUpdates, an_abort_ends_every_wait) {
  UpdatingJob job(2, 1);
  std::thread aborts([&] { job.backends[0]->Abort(PeerLost(1, "rank 1 is gone")); });

  const Status status = job.Advance(0, 1, 0);

  aborts.join();
  EXPECT_TRUE(testing::Has(status.message(), "rank 1 is gone")) << status;
}

// Two threads on each of two workers, one for each of two parameters, come in any order: none waits
// for what the other one of its rank waits for.
TEST(PsUpdates, clocks_of_different_parameters_do_not_wait_for_each_other) {
  constexpr int64_t kSteps = 300;
  UpdatingJob job(2, 2);
  testing::RunRanks(4, [&](int thread) {
    const int rank = thread % 2;
    const auto key = static_cast<uint64_t>(thread / 2);
    for (int64_t step = 1; step <= kSteps; ++step) {
      ASSERT_OK(job.Advance(rank, step, 0, key));
    }
  });
}

TEST(PsUpdates, a_worker_leaves_while_one_of_its_threads_waits) {
  UpdatingJob job(2, 1);
  std::thread waits([&] { EXPECT_OK(job.Advance(0, 2, 0)); });
  // Rank 1 has done one step; it is the slowest one as soon as rank 0 has said that it has done
  // two.
  int64_t clock[2] = {1, -1};
  do {
    clock[0] = 1;
    clock[1] = -1;
    ASSERT_OK(job.backends[1]->Update(PushMode::kClock, 0, {clock, 2, DType::kInt64, {}},
                                      testing::Soon()));
  } while (clock[0] > 0);

  EXPECT_OK(job.Advance(0, -1, 0));

  waits.join();
}

// What does not fit fails on the worker that sends it, and the servers go on for all.
TEST(PsUpdates, an_update_that_does_not_fit_is_refused_and_ends_nothing) {
  UpdatingJob job(2, 2);
  std::vector<float> small(10, 1), large(200'000, 1), good(10, 2);
  EXPECT_OK(job.Update(0, PushMode::kFill, small));

  for (std::vector<float>* const wrong : {&large, &large}) {
    const Status refused = job.Update(1, PushMode::kAdd, *wrong);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused;
    EXPECT_TRUE(testing::Has(refused.message(), "refused an update of 200000 elements")) << refused;
  }

  EXPECT_OK(job.Update(1, PushMode::kAdd, good));
  EXPECT_EQ(good, std::vector<float>(10, 3));
  EXPECT_OK(job.Update(0, PushMode::kFill, small));
  EXPECT_EQ(small, std::vector<float>(10, 3));
}

TEST(PsUpdates, servers_without_parameters_say_so) {
  testing::InprocFabric fabric(3);
  PsBackend backend(fabric.Connect(0), Places::Alike(2, 1), testing::NodeNames(1));
  std::vector<float> values(4);

  const Status status =
      backend.Update(PushMode::kAdd, 1, {values.data(), 4, DType::kFloat32, {}}, testing::Soon());

  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_TRUE(testing::Has(status.message(), "RABIT_PS_ASYNC=1")) << status;
}

}  // namespace
}  // namespace rabit

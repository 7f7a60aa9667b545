// Blocking calls whose thread does the engine's work; ranks are threads.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/wake_signal.h"
#include "engine/engine.h"
#include "testing/engine_job.h"
#include "testing/soon.h"
#include "testing/transport_wrapper.h"

namespace rabit {
namespace {

using testing::Has;
using testing::JobOptions;
using testing::MakeRequest;
using testing::Soon;
using testing::SubmitOne;
using testing::TestJob;

Request InPlace(const std::string& name, std::vector<float>& values) {
  Request request = MakeRequest(name, Kind::kAllreduce, values);
  request.output = request.input;
  return request;
}

Status RunAndRelease(Engine& engine, Request request) {
  Handle handle;
  Status status = engine.Run(std::move(request), handle, Soon());
  engine.Release(handle);
  return status;
}

// As "a" and "b", in place; rank 1 submits them the other way round.
void SumInAnyOrder(Engine& engine, int rank, std::vector<float>& a, std::vector<float>& b) {
  Request requests[] = {InPlace("a", a), InPlace("b", b)};
  if (rank == 1) std::swap(requests[0], requests[1]);
  Handle handles[2];
  ASSERT_OK(engine.Submit(requests, handles));
  for (Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
  for (Handle handle : handles) engine.Release(handle);
}

TEST(EngineRun, repeated_calls_give_the_sums_of_all_ranks) {
  for (int size : {1, 2, 3, 5}) {
    TestJob(size).Run([&](Engine& engine, int) {
      for (int i = 0; i < 200; ++i) {
        std::vector<float> values = {1.0f, static_cast<float>(i)};
        ASSERT_OK(RunAndRelease(engine, InPlace("x", values)));
        ASSERT_EQ(values, (std::vector<float>{static_cast<float>(size),
                                              static_cast<float>(size) * static_cast<float>(i)}));
      }
    });
  }
}

TEST(EngineRun, threads_that_block_and_requests_in_flight_share_one_engine) {
  TestJob(3).Run([](Engine& engine, int rank) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&engine, t] {
        for (int i = 0; i < 60; ++i) {
          std::vector<float> values = {static_cast<float>(t + 1)};
          EXPECT_OK(RunAndRelease(engine, InPlace("blocking." + std::to_string(t), values)));
          EXPECT_EQ(values[0], 3.0f * static_cast<float>(t + 1));
        }
      });
    }
    for (int i = 0; i < 60; ++i) {
      std::vector<float> a(1000, 1.0f), b = {2.0f};
      SumInAnyOrder(engine, rank, a, b);
      EXPECT_EQ(a[999], 3.0f);
      EXPECT_EQ(b[0], 6.0f);
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// Who drives finishes the request on its own thread, a lane on another.
TEST(EngineRun, of_calls_in_a_row_the_calling_thread_does_the_work) {
  std::atomic<std::thread::id> finished_by[2];  // outlives the engines
  TestJob(2).Run([&](Engine& engine, int rank) {
    std::atomic<std::thread::id>& mine = finished_by[rank];
    int driven = 0;
    for (int i = 0; i < 300; ++i) {
      std::vector<float> values = {1.0f};
      Request request = InPlace("x", values);
      request.completion.notify = [](void* context, int32_t, const char*) {
        static_cast<std::atomic<std::thread::id>*>(context)->store(std::this_thread::get_id());
      };
      request.completion.context = &mine;
      mine.store({});
      ASSERT_OK(RunAndRelease(engine, std::move(request)));
      driven += mine.load() == std::this_thread::get_id() ? 1 : 0;
    }
    EXPECT_GT(driven, 0);
  });
}

// A request with a number for where it was finished.
Request Noted(const std::string& name, std::vector<float>& values,
              std::atomic<std::thread::id>& finished_by) {
  Request request = InPlace(name, values);
  request.completion.notify = [](void* context, int32_t, const char*) {
    static_cast<std::atomic<std::thread::id>*>(context)->store(std::this_thread::get_id());
  };
  request.completion.context = &finished_by;
  return request;
}

JobOptions CutIntoFive() {
  JobOptions options;
  options.limits.partition_bytes = 4 << 10;  // of 5 * 1024 floats
  options.limits.fusion_bytes = 0;
  return options;
}

TEST(EngineRun, the_calling_thread_runs_every_part_of_its_tensor) {
  std::atomic<std::thread::id> finished_by[2];
  for (const int lanes : {1, 2}) {
    JobOptions options = CutIntoFive();
    options.engine.lanes = lanes;
    TestJob(2, options).Run([&](Engine& engine, int rank) {
      int driven = 0;
      for (int i = 0; i < 200; ++i) {
        std::vector<float> values(5 << 10, static_cast<float>(i));
        finished_by[rank].store({});
        ASSERT_OK(RunAndRelease(engine, Noted("x", values, finished_by[rank])));
        EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(2 * i)));
        driven += finished_by[rank].load() == std::this_thread::get_id() ? 1 : 0;
      }
      EXPECT_GT(driven, 10) << lanes << " lanes";
    });
  }
}

TEST(EngineRun, large_tensors_of_several_threads_and_of_lanes_pass_each_other) {
  TestJob(3, CutIntoFive()).Run([](Engine& engine, int rank) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&engine, t] {
        for (int i = 0; i < 40; ++i) {
          std::vector<float> values(5 << 10, static_cast<float>(t + 1));
          EXPECT_OK(RunAndRelease(engine, InPlace("blocking." + std::to_string(t), values)));
          EXPECT_EQ(values, std::vector<float>(values.size(), 3.0f * static_cast<float>(t + 1)));
        }
      });
    }
    for (int i = 0; i < 40; ++i) {
      std::vector<float> a(3 << 10, 1.0f), b(7 << 10, 2.0f);
      SumInAnyOrder(engine, rank, a, b);
      EXPECT_EQ(a, std::vector<float>(a.size(), 3.0f));
      EXPECT_EQ(b, std::vector<float>(b.size(), 6.0f));
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// Sends nothing before a time.
class LateTransport final : public TransportWrapper {
 public:
  LateTransport(std::unique_ptr<Transport> inner, Deadline not_before)
      : TransportWrapper(std::move(inner)), not_before_(not_before) {}
  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    while (std::chrono::steady_clock::now() <= not_before_) std::this_thread::yield();
    return inner().Send(peer, tag, buffer);
  }

 private:
  const Deadline not_before_;
};

TEST(EngineRun, what_the_deadline_leaves_of_a_tensor_runs_on_the_lanes) {
  const Deadline early = After(std::chrono::milliseconds(200));
  JobOptions options = CutIntoFive();
  options.wrap = [early](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank == 0) return inner;
    return std::make_unique<LateTransport>(std::move(inner), early);
  };
  std::atomic<std::thread::id> finished_by;
  TestJob(2, options).Run([&](Engine& engine, int rank) {
    std::vector<float> values(5 << 10, 1.0f);
    Handle handle;
    if (rank == 0) {
      (void)engine.Run(Noted("x", values, finished_by), handle, early);
    } else {
      EXPECT_OK(engine.Run(InPlace("x", values), handle, Soon()));
    }
    EXPECT_OK(engine.Wait(handle, Soon()));
    engine.Release(handle);
    EXPECT_EQ(values, std::vector<float>(values.size(), 2.0f));
    if (rank == 1) return;
    EXPECT_TRUE(finished_by.load() != std::this_thread::get_id());
  });
}

// Notes who waits.
class NotingTransport final : public TransportWrapper {
 public:
  NotingTransport(std::unique_ptr<Transport> inner, std::atomic<int>* waits)
      : TransportWrapper(std::move(inner)), waits_(waits) {}
  void SetWaiter(int, Waiter waiter, size_t) override {
    ++waits_[waiter == Waiter::kCaller ? 1 : 0];
  }

 private:
  std::atomic<int>* const waits_;
};

TEST(EngineRun, backends_learn_whether_a_lane_waits_or_a_caller) {
  std::atomic<int> waits[2] = {0, 0};  // of lanes, of callers
  JobOptions options;
  options.wrap = [&waits](int, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    return std::make_unique<NotingTransport>(std::move(inner), waits);
  };
  TestJob(2, options).Run([&](Engine& engine, int) {
    std::vector<float> values = {1.0f}, other = {1.0f};
    for (int i = 0; i < 20; ++i) SumInAnyOrder(engine, 0, values, other);  // in one bucket
    const OrderedCall call{.input = {values.data(), 1, DType::kFloat32, {}},
                           .output = {values.data(), 1, DType::kFloat32, {}}};
    for (int i = 0; i < 30; ++i) EXPECT_OK(engine.RunOrdered(call, Soon()));
  });
  EXPECT_EQ(waits[0].load(), 2 * 20);
  EXPECT_EQ(waits[1].load(), 2 * 30);
}

TEST(EngineRun, after_its_deadline_the_request_goes_on_under_its_handle) {
  TestJob(2).Run([](Engine& engine, int rank) {
    std::vector<float> values = {1.0f};
    Handle handle;
    if (rank == 0) {
      const Status status =
          engine.Run(InPlace("x", values), handle, After(std::chrono::milliseconds(5)));
      EXPECT_EQ(status.code(), Code::kTimedOut);
      std::vector<float> go = {0.0f};
      EXPECT_OK(RunAndRelease(engine, InPlace("go", go)));
    } else {
      std::vector<float> go = {0.0f};
      EXPECT_OK(RunAndRelease(engine, InPlace("go", go)));
      EXPECT_OK(engine.Run(InPlace("x", values), handle, Soon()));
    }
    EXPECT_OK(engine.Wait(handle, Soon()));
    EXPECT_EQ(values[0], 2.0f);
    engine.Release(handle);
  });
}

TEST(EngineRun, a_refused_request_has_no_handle_and_a_mismatch_names_the_tensor) {
  TestJob(2).Run([](Engine& engine, int rank) {
    std::vector<float> values(rank == 0 ? 2 : 3, 1.0f);
    Handle handle{7};
    EXPECT_EQ(engine.Run(InPlace("", values), handle, Soon()).code(), Code::kInvalidArgument);
    EXPECT_EQ(handle, Handle{});
    const Status status = engine.Run(InPlace("odd", values), handle, Soon());
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_TRUE(Has(status.message(), "'odd'")) << status.message();
    engine.Release(handle);
    std::vector<float> good = {1.0f};
    EXPECT_OK(RunAndRelease(engine, InPlace("good", good)));
  });
}

TEST(EngineRun, a_caller_that_drives_sees_the_other_rank_stop) {
  TestJob job(2);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 2; ++rank) engines.push_back(job.Start(rank));
  testing::RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    std::vector<float> values = {1.0f};
    EXPECT_OK(RunAndRelease(engine, InPlace("x", values)));
    if (rank == 1) {
      engines[1].reset();  // leaves without asking
      return;
    }
    EXPECT_FALSE(RunAndRelease(engine, InPlace("x", values)).ok());
    (void)engine.Stop(Soon());
  });
}

// How often it does depends on how busy the machine is, so the ranks go on until both have seen it:
// ten times in 50'000 where two builds ran beside.
TEST(EngineRun, a_caller_that_submits_and_waits_in_a_row_does_the_work) {
  std::atomic<std::thread::id> finished_by[2];
  TestJob(2).Run([&](Engine& engine, int rank) {
    int driven = 0;
    bool have_both = false;
    for (int i = 0; i < 2000 || (i < 50'000 && !have_both); ++i) {
      std::vector<float> values = {1.0f, static_cast<float>(i), driven > 0 ? 1.0f : 0.0f};
      finished_by[rank].store({});
      const Handle handle = SubmitOne(engine, Noted("x", values, finished_by[rank]));
      ASSERT_OK(engine.Wait(handle, Soon()));
      engine.Release(handle);
      ASSERT_EQ(values, (std::vector<float>{2.0f, 2.0f * static_cast<float>(i), values[2]}));
      have_both = values[2] == 2.0f;
      driven += finished_by[rank].load() == std::this_thread::get_id() ? 1 : 0;
    }
    EXPECT_GT(driven, 0);
  });
}

// Whatever a caller does after a row of submissions with their waits, its requests proceed.
TEST(EngineRun, a_request_that_nobody_waits_for_after_all_finishes) {
  TestJob(2).Run([](Engine& engine, int) {
    std::vector<float> row = {1.0f}, last = {1.0f}, other = {1.0f};
    for (int variant = 0; variant < 5; ++variant) {
      for (int i = 0; i < 40; ++i) {
        const Handle handle = SubmitOne(engine, InPlace("row", row));
        ASSERT_OK(engine.Wait(handle, Soon()));
        engine.Release(handle);
      }
      const Handle handle = SubmitOne(engine, InPlace("last", last));
      if (variant == 0) {
        ASSERT_OK(RunAndRelease(engine, InPlace("other", other)));
      } else if (variant == 1) {
        std::vector<float> a = {1.0f}, b = {2.0f};
        SumInAnyOrder(engine, 0, a, b);
      } else if (variant == 2) {
        const Deadline end = Soon();
        while (!*engine.IsDone(handle) && std::chrono::steady_clock::now() < end) {
          std::this_thread::yield();
        }
        EXPECT_TRUE(*engine.IsDone(handle));
      } else if (variant == 3) {
        EXPECT_EQ(*engine.WaitAny(std::span(&handle, 1), nullptr, Soon()), 0);
      }
      ASSERT_OK(engine.Wait(handle, Soon()));
      engine.Release(handle);
    }
  });
}

// The engine thread is not woken for the later ones of a row, and looks by itself.
TEST(EngineRun, requests_in_a_row_finish_where_nobody_waits_for_them) {
  constexpr int kRequests = 20;
  struct Seen {
    std::atomic<int> finished{0};
    WakeSignal signal;
  };
  Seen seen_by[2];  // outlive the engines, which may still notify
  TestJob(2).Run([&seen_by](Engine& engine, int rank) {
    Seen& seen = seen_by[rank];
    const auto notify = [](void* context, int32_t, const char*) {
      auto* const all = static_cast<Seen*>(context);
      ++all->finished;
      all->signal.Notify();
    };
    std::vector<std::vector<float>> values(kRequests, {1.0f});
    for (int round = 1; round <= 20; ++round) {
      std::vector<Handle> handles;
      for (int i = 0; i < kRequests; ++i) {
        Request request = InPlace("row." + std::to_string(i), values[static_cast<size_t>(i)]);
        request.completion = {notify, &seen};
        handles.push_back(SubmitOne(engine, std::move(request)));
      }
      ASSERT_TRUE(
          seen.signal.Wait([&] { return seen.finished.load() == round * kRequests; }, Soon()));
      for (const Handle handle : handles) engine.Release(handle);
    }
  });
}

TEST(EngineRun, waiting_for_any_returns_the_one_that_has_finished) {
  TestJob(2).Run([](Engine& engine, int rank) {
    std::vector<float> held = {1.0f}, free = {1.0f}, go = {1.0f};
    Handle handles[2];
    if (rank == 0) handles[0] = SubmitOne(engine, InPlace("held", held));
    handles[1] = SubmitOne(engine, InPlace("free", free));
    if (rank == 0) {
      EXPECT_EQ(*engine.WaitAny(handles, nullptr, Soon()), 1);
      EXPECT_EQ(engine.WaitAny(std::span(handles, 1), nullptr, After({})).status().code(),
                Code::kTimedOut);
      uint64_t news = 0;
      EXPECT_EQ(*engine.WaitAny(std::span(handles, 1), &news, Soon()), -1);
      EXPECT_EQ(news, 1u);
      EXPECT_EQ(engine.WaitAny(std::span(handles, 1), &news, After({})).status().code(),
                Code::kTimedOut);
    }
    ASSERT_OK(RunAndRelease(engine, InPlace("go", go)));
    if (rank == 1) handles[0] = SubmitOne(engine, InPlace("held", held));
    for (Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
    EXPECT_EQ(*engine.WaitAny(handles, nullptr, Soon()), 0);
    const Handle unknown{12345};
    EXPECT_EQ(engine.WaitAny(std::span(&unknown, 1), nullptr, Soon()).status().code(),
              Code::kInvalidArgument);
  });
}

// Rank 0 must agree on messages between the others.  After a blocking call its engine thread leaves
// the steps to callers, and the next message would wait for so long.
TEST(EngineRun, a_rank_that_serves_others_soon_takes_the_steps_back_after_a_call) {
  std::atomic<bool> has_looked{false};
  TestJob(3).Run([&](Engine& engine, int rank) {
    std::vector<float> values = {1.0f};
    ASSERT_OK(RunAndRelease(engine, InPlace("step", values)));
    if (rank == 0) {
      EXPECT_TRUE(Has(engine.StatisticsJson(), "\"hand_back_us\":10000,"));
      has_looked.store(true);
    } else {
      while (!has_looked.load()) std::this_thread::yield();
      Request message = MakeRequest("m", rank == 1 ? Kind::kSend : Kind::kRecv, values);
      message.signature.root = rank == 1 ? 2 : 1;
      if (rank == 2) message.output = message.input;
      ASSERT_OK(RunAndRelease(engine, std::move(message)));
    }
    ASSERT_OK(RunAndRelease(engine, InPlace("step", values)));
    if (rank != 0) return;
    EXPECT_TRUE(Has(engine.StatisticsJson(), "\"hand_back_us\":500,")) << engine.StatisticsJson();
  });
}

struct Asked {
  Engine* engine = nullptr;
  std::string json;
  std::atomic<bool> is_done{false};
};

void AskForStatistics(void* context, int32_t, const char*) {
  auto* const asked = static_cast<Asked*>(context);
  asked->json = asked->engine->StatisticsJson();
  asked->is_done.store(true);
}

// A vote is finished by the engine's step, data by a lane.
TEST(EngineRun, a_callback_may_ask_for_the_statistics) {
  for (const Kind kind : {Kind::kVote, Kind::kAllreduce}) {
    TestJob(2).Run([&](Engine& engine, int) {
      Asked asked;
      asked.engine = &engine;
      std::vector<int64_t> values = {5};
      Request request = MakeRequest("x", kind, values);
      request.completion = {AskForStatistics, &asked};
      Handle handle;
      ASSERT_OK(engine.Submit({&request, 1}, {&handle, 1}));
      EXPECT_OK(engine.Wait(handle, Soon()));
      const Deadline deadline = Soon();
      while (!asked.is_done.load() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::yield();
      EXPECT_TRUE(Has(asked.json, "\"stall_reports\"")) << Name(kind) << asked.json;
      engine.Release(handle);
    });
  }
}

}  // namespace
}  // namespace rabit

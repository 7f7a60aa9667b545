// What whole engines do when something goes wrong; ranks are threads.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/wake_signal.h"
#include "engine/engine.h"
#include "engine/timeline.h"
#include "testing/engine_job.h"
#include "testing/soon.h"
#include "testing/transport_wrapper.h"

namespace rabit {
namespace {

using testing::Has;
using testing::JobOptions;
using testing::MakeRequest;
using testing::RunOne;
using testing::RunRanks;
using testing::Soon;
using testing::SubmitOne;
using testing::TestJob;

TEST(EngineFailure, ranks_that_disagree_fail_that_tensor_only) {
  TestJob(2).Run([&](Engine& engine, int rank) {
    std::vector<float> odd(rank == 0 ? 2 : 3, 1.0f), good = {1.0f};
    Request requests[] = {MakeRequest("odd", Kind::kAllreduce, odd),
                          MakeRequest("good", Kind::kAllreduce, good)};
    Handle handles[2];
    ASSERT_OK(engine.Submit(requests, handles));
    const Status status = engine.Wait(handles[0], Soon());
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_TRUE(Has(status.message(), "'odd'")) << status.message();
    EXPECT_TRUE(Has(status.message(), "float32[2]")) << status.message();
    EXPECT_TRUE(Has(status.message(), "float32[3]")) << status.message();
    EXPECT_OK(engine.Wait(handles[1], Soon()));
  });
}

TEST(EngineFailure, a_duplicate_name_enqueues_nothing_and_is_free_after_its_wait) {
  TestJob(2).Run([&](Engine& engine, int rank) {
    std::vector<float> values = {1.0f};
    if (rank == 0) {
      const Handle first = SubmitOne(engine, MakeRequest("x", Kind::kAllreduce, values));
      Request requests[] = {MakeRequest("y", Kind::kAllreduce, values),
                            MakeRequest("x", Kind::kAllreduce, values)};
      Handle handles[2];
      const Status status = engine.Submit(requests, handles);
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_TRUE(Has(status.message(), "'x' on rank 0")) << status.message();
      EXPECT_EQ(engine.Wait(first, After(std::chrono::milliseconds(1))).code(), Code::kTimedOut);
      std::vector<int32_t> none;
      (void)RunOne<int32_t>(engine, MakeRequest("go", Kind::kBarrier, none));
      EXPECT_OK(engine.Wait(first, Soon()));
    } else {
      std::vector<int32_t> none;
      (void)RunOne<int32_t>(engine, MakeRequest("go", Kind::kBarrier, none));
      (void)RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, values));
    }
    EXPECT_EQ(RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, values)),
              std::vector<float>{2.0f});
    EXPECT_EQ(RunOne<float>(engine, MakeRequest("y", Kind::kAllreduce, values)),
              std::vector<float>{2.0f});
  });
}

TEST(EngineFailure, stop_aborts_open_handles_and_names_the_tensor) {
  TestJob job(2);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 2; ++rank) engines.push_back(job.Start(rank));
  RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    std::vector<float> values = {1.0f};
    Handle handle;
    if (rank == 0) handle = SubmitOne(engine, MakeRequest("lonely", Kind::kAllreduce, values));
    EXPECT_OK(engine.Stop(Soon()));
    EXPECT_OK(engine.Stop(Soon()));  // again
    if (rank != 0) return;
    const Status status = engine.Wait(handle, Soon());
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_TRUE(Has(status.message(), "'lonely'")) << status.message();
    Request late = MakeRequest("late", Kind::kAllreduce, values);
    EXPECT_EQ(engine.Submit(std::span(&late, 1), std::span(&handle, 1)).code(), Code::kAborted);
    EXPECT_TRUE(Has(engine.StatisticsJson(), "\"controller\""));
  });
}

TEST(EngineFailure, an_engine_that_leaves_alone_does_not_block_and_the_other_learns) {
  TestJob job(2);
  std::unique_ptr<Engine> stays = job.Start(0), leaves = job.Start(1);
  std::vector<float> values = {1.0f};
  const Handle handle = SubmitOne(*stays, MakeRequest("x", Kind::kAllreduce, values));

  const auto started = std::chrono::steady_clock::now();
  leaves.reset();

  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(4));
  const Status status = stays->Wait(handle, Soon());
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(status.code() == Code::kTimedOut);
  EXPECT_TRUE(Has(status.message(), "rank 1")) << status.message();
}

// In a star and in a tree, for rank 0, a rank inside and a leaf: all others hear the reason.
TEST(EngineFailure, a_rank_that_aborts_says_why) {
  constexpr int kSize = 5;
  for (const int fan_out : {0, 2}) {
    for (const int leaving : {0, 1, 4}) {
      JobOptions options;
      options.fan_out = fan_out;
      TestJob job(kSize, options);
      std::vector<std::unique_ptr<Engine>> engines;
      for (int rank = 0; rank < kSize; ++rank) engines.push_back(job.Start(rank));
      std::vector<float> values = {1.0f};
      std::vector<Handle> handles;
      for (int rank = 0; rank < kSize; ++rank) {
        const char* name = rank == leaving ? "own" : "x";
        handles.push_back(SubmitOne(*engines[static_cast<size_t>(rank)],
                                    MakeRequest(name, Kind::kAllreduce, values)));
      }

      engines[static_cast<size_t>(leaving)]->Abort("ValueError: no such file", Soon());

      const std::string text =
          "rank " + std::to_string(leaving) + " is ending after ValueError: no such file";
      for (size_t rank = 0; rank < kSize; ++rank) {
        const Status status = engines[rank]->Wait(handles[rank], Soon());
        const bool is_leaving = static_cast<int>(rank) == leaving;
        EXPECT_EQ(status.code(), is_leaving ? Code::kAborted : Code::kPeerLost);
        EXPECT_EQ(status.culprit(), leaving) << status.message();
        EXPECT_TRUE(Has(status.message(), ": " + text)) << status.message();
        EXPECT_FALSE(Has(status.message(), "gave up")) << status.message();
      }
    }
  }
}

TEST(EngineFailure, an_abort_after_the_stop_does_nothing) {
  TestJob(2).Run([&](Engine& engine, int) {
    EXPECT_OK(engine.Stop(Soon()));
    engine.Abort("SystemExit: 3", Soon());
    EXPECT_FALSE(Has(engine.StatisticsJson(), "\"failure\""));
  });
}

TEST(EngineFailure, a_lost_rank_fails_every_open_and_later_request_of_the_others) {
  TestJob job(3);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 3; ++rank) engines.push_back(job.Start(rank));
  std::vector<std::vector<float>> values(3, std::vector<float>{1.0f});
  std::vector<Handle> handles(3);
  for (size_t rank : {0, 1}) {
    handles[rank] = SubmitOne(*engines[rank], MakeRequest("x", Kind::kAllreduce, values[rank]));
  }

  job.hub().Kill(2, "was killed by signal 9");

  for (size_t rank : {0, 1}) {
    const Status status = engines[rank]->Wait(handles[rank], After(std::chrono::seconds(5)));
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    EXPECT_EQ(status.culprit(), 2) << status.message();
    EXPECT_TRUE(Has(status.message(), "'x'")) << status.message();
    Request late = MakeRequest("late", Kind::kAllreduce, values[rank]);
    Handle handle;
    const Status refused = engines[rank]->Submit(std::span(&late, 1), std::span(&handle, 1));
    EXPECT_EQ(refused.code(), Code::kPeerLost);
    EXPECT_EQ(refused.culprit(), 2);
    EXPECT_TRUE(Has(refused.message(), "'late'")) << refused.message();
    EXPECT_EQ(engines[rank]->AddGroup(std::vector<int>{0, 1}, Soon()).status().code(),
              Code::kPeerLost);
  }
}

// Opens when it is told, or after a time.
class Gate {
 public:
  // True: it was opened; false: the time is over.
  bool Wait(std::chrono::milliseconds time) {
    return changed_.Wait([this] { return is_open_.load(); }, After(time));
  }
  void Open() {
    is_open_.store(true);
    changed_.Notify();
  }

 private:
  std::atomic<bool> is_open_{false};
  WakeSignal changed_;
};

// Fails with a loss that names the wrong rank, as a transport does whose neighbour has left because
// of somebody else's death.
class SuspiciousTransport final : public TransportWrapper {
 public:
  SuspiciousTransport(std::unique_ptr<Transport> inner, std::function<void()> on_first)
      : TransportWrapper(std::move(inner)), on_first_(std::move(on_first)) {}
  Operation Send(int, Tag, ConstBytes) override { return Lose(); }
  Operation Recv(int, Tag, Bytes) override { return Lose(); }

 private:
  Operation Lose() {
    if (!has_failed_.exchange(true) && on_first_) on_first_();
    return Operation(PeerLost(0, "rank 0 closed the connection"));
  }
  const std::function<void()> on_first_;
  std::atomic<bool> has_failed_{false};
};

TEST(EngineFailure, the_control_plane_names_the_culprit_of_what_a_lane_suspects) {
  TestJob* job = nullptr;
  JobOptions options;
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank != 1) return inner;
    return std::make_unique<SuspiciousTransport>(
        std::move(inner), [&job] { job->hub().Kill(2, "was killed by signal 9"); });
  };
  TestJob made(3, options);
  job = &made;
  std::vector<float> of_the_dead = {1.0f};  // outlives the engines
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 3; ++rank) engines.push_back(made.Start(rank));
  (void)SubmitOne(*engines[2], MakeRequest("x", Kind::kAllreduce, of_the_dead));
  RunRanks(2, [&](int rank) {
    std::vector<float> values = {1.0f};
    Engine& engine = *engines[static_cast<size_t>(rank)];
    Status status;
    (void)RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, values), &status);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    EXPECT_EQ(status.culprit(), 2) << status.message();
  });
}

// Ends when its gate is open, as NCCL does only after the kernels of a program.
class SlowToEnd final : public Backend {
 public:
  explicit SlowToEnd(Gate* gate) : gate_(gate) {}
  std::string_view name() const override { return "slow"; }
  void Abort(Status) override {
    if (gate_ != nullptr) (void)gate_->Wait(std::chrono::seconds(10));
  }

 private:
  Gate* const gate_;  // null: ends at once
};

// The lane that waits for the verdict has it before anything that may take long.
TEST(EngineFailure, a_backend_that_is_slow_to_end_does_not_hide_the_culprit) {
  Gate has_heard;
  TestJob* job = nullptr;
  JobOptions options;
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank != 1) return inner;
    return std::make_unique<SuspiciousTransport>(
        std::move(inner), [&job] { job->hub().Kill(2, "was killed by signal 9"); });
  };
  options.more_backends = [&](int rank) {
    std::vector<std::unique_ptr<Backend>> more;
    more.push_back(std::make_unique<SlowToEnd>(rank == 1 ? &has_heard : nullptr));
    return more;
  };
  TestJob made(3, options);
  job = &made;
  std::vector<float> of_the_dead = {1.0f};  // outlives the engines
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 3; ++rank) engines.push_back(made.Start(rank));
  (void)SubmitOne(*engines[2], MakeRequest("x", Kind::kAllreduce, of_the_dead));
  RunRanks(2, [&](int rank) {
    std::vector<float> values = {1.0f};
    Status status;
    (void)RunOne<float>(*engines[static_cast<size_t>(rank)],
                        MakeRequest("x", Kind::kAllreduce, values), &status);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    EXPECT_EQ(status.culprit(), 2) << status.message();
    if (rank == 1) has_heard.Open();
  });
}

TEST(EngineFailure, a_suspicion_that_nobody_explains_stands_and_reaches_every_rank) {
  JobOptions options;
  options.wrap = [](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank != 1) return inner;
    return std::make_unique<SuspiciousTransport>(std::move(inner), nullptr);
  };
  TestJob job(3, options);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 3; ++rank) engines.push_back(job.Start(rank));
  RunRanks(3, [&](int rank) {
    std::vector<float> values = {1.0f};
    Status status;
    (void)RunOne<float>(*engines[static_cast<size_t>(rank)],
                        MakeRequest("conv1.weight", Kind::kAllreduce, values), &status);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    EXPECT_TRUE(Has(status.message(), "'conv1.weight'")) << status.message();
    EXPECT_TRUE(Has(status.message(), "closed the connection")) << status.message();
  });
}

// Knows none, as an older installation does not know new ones.
class NoCodecs final : public CodecSet {
 public:
  Result<CodecHold> Find(std::string_view spec) override {
    return InvalidArgument("there is no codec '" + std::string(spec) + "'");
  }
};

TEST(EngineFailure, a_rank_that_does_not_know_an_agreed_codec_says_so) {
  JobOptions options;
  options.codecs = [](int rank) -> std::unique_ptr<CodecSet> {
    if (rank == 1) return std::make_unique<NoCodecs>();
    return MakeCodecSet();
  };
  TestJob job(2, options);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 2; ++rank) engines.push_back(job.Start(rank));
  RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    std::vector<float> values(100, 1.0f);
    Request request = MakeRequest("w", rank == 0 ? Kind::kAllreduce : Kind::kJoin, values);
    if (rank == 0) request.signature.codec = "fp16";
    Status status;
    (void)RunOne<float>(engine, std::move(request), &status);
    EXPECT_EQ(status.code(), Code::kMismatch) << status;
    EXPECT_EQ(status.culprit(), 1) << status;
    EXPECT_TRUE(Has(status.message(),
                    "allreduce 'w' on rank 1: the other ranks have agreed on "
                    "the codec 'fp16', which this rank does not know"))
        << status;
  });
}

TEST(EngineFailure, requests_that_cannot_work_are_refused_with_the_reason) {
  TestJob(2).Run([&](Engine& engine, int) {
    std::vector<float> values = {1, 2, 3};
    const auto message = [&](Request request, Code code = Code::kInvalidArgument) {
      Handle handle;
      const Status status = engine.Submit(std::span(&request, 1), std::span(&handle, 1));
      EXPECT_EQ(status.code(), code);
      return status.message();
    };
    Request request = MakeRequest("x", Kind::kBroadcast, values);
    request.signature.root = 2;
    EXPECT_TRUE(Has(message(request), "rank 2 is not in group 0"));
    request = MakeRequest("x", Kind::kAllreduce, values);
    request.signature.op = ReduceOp::kBitAnd;
    EXPECT_TRUE(Has(message(request, Code::kUnsupported), "bitwise"));
    std::vector<uint32_t> unsigned_values = {1, 2, 3};
    request = MakeRequest("x", Kind::kReduceScatter, unsigned_values);
    request.signature.dtype = request.input.dtype = DType::kUint32;
    EXPECT_TRUE(Has(message(request, Code::kUnsupported),
                    "sum of uint32 is not defined: ranks exchange this type"));
    request = MakeRequest("x", Kind::kAllreduce, values);
    request.signature.axis_order = 0x11;
    EXPECT_TRUE(Has(message(request), "axis order 17 does not name each axis once"));
    request = MakeRequest("x", Kind::kAllreduce, values);
    request.signature.group = 7;
    EXPECT_TRUE(Has(message(request), "no group 7"));
    request = MakeRequest("x", Kind::kAllreduce, values, {4});
    EXPECT_TRUE(Has(message(request), "3 elements"));
    request = MakeRequest("x", Kind::kAlltoall, values);
    EXPECT_TRUE(Has(message(request), "cannot share evenly"));
    request.signature.splits = {1, 1};
    EXPECT_TRUE(Has(message(request), "sum to 2"));
    request = MakeRequest("x", Kind::kAllreduce, values);
    request.signature.codec = "fp16";
    request.signature.op = ReduceOp::kMax;
    EXPECT_TRUE(Has(message(request), "compressed values can only be summed"));
    request.signature.op = ReduceOp::kSum;
    request.residual = request.input;
    EXPECT_TRUE(Has(message(request), "codec 'fp16' keeps no residual"));
    request.signature.codec = "sign:block=512";
    request.residual.count = 2;
    EXPECT_TRUE(Has(message(request), "the residual has 2 elements of float32, the input 3"));
    request.residual.data = nullptr;
    request.signature.codec = "sign:block=3";
    EXPECT_TRUE(Has(message(request), "a multiple of 8"));
    std::vector<int32_t> integers = {1, 2};
    request = MakeRequest("x", Kind::kAllreduce, integers);
    request.signature.codec = "sign:block=512";
    EXPECT_TRUE(Has(message(request), "is for allreduce of float32, not allreduce of int32"));
    request.signature.codec.clear();
    request.residual = request.input;
    EXPECT_TRUE(Has(message(request), "a residual and no codec"));
    for (const Kind kind :
         {Kind::kBroadcast, Kind::kAllgather, Kind::kReduceScatter, Kind::kGather}) {
      request = MakeRequest("x", kind, values);
      request.signature.root = 0;
      request.signature.codec = "fp16";
      EXPECT_TRUE(Has(message(request), "codec 'fp16' is for allreduce and reduce")) << Name(kind);
    }
    request = MakeRequest("x", Kind::kAllgather, values);
    request.signature.shape.clear();
    EXPECT_TRUE(Has(message(request), "scalar") || Has(message(request), "elements"));
  });
}

TEST(EngineFailure, a_rank_that_never_submits_is_reported_and_can_still_come) {
  JobOptions options;
  options.engine.stall_warning_ms = 20;
  options.engine.log_level = LogLevel::kOff;
  options.controller.stall_warning_ms = 20;
  std::atomic<bool> was_reported{false};
  TestJob(2, options).Run([&](Engine& engine, int rank) {
    std::vector<float> values = {1.0f};
    const Deadline deadline = Soon();
    if (rank == 0) {
      const Handle handle = SubmitOne(engine, MakeRequest("x", Kind::kAllreduce, values));
      while (!was_reported && std::chrono::steady_clock::now() < deadline) {
        was_reported = !Has(engine.StatisticsJson(), "\"stall_reports\":0");
      }
      EXPECT_OK(engine.Wait(handle, deadline));
    } else {
      while (!was_reported && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      (void)RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, values));
    }
    EXPECT_TRUE(was_reported.load());
  });
}

TEST(EngineFailure, a_wait_past_the_abort_time_fails_every_rank_and_names_who_is_missing) {
  JobOptions options;
  options.engine.log_level = LogLevel::kOff;
  options.controller.stall_abort_ms = 50;
  TestJob job(2, options);
  std::unique_ptr<Engine> waits = job.Start(0), never = job.Start(1);
  std::vector<float> values = {1.0f};
  Status status;
  (void)RunOne<float>(*waits, MakeRequest("x", Kind::kAllreduce, values), &status);
  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_TRUE(Has(status.message(), "rank 1")) << status.message();
}

TEST(EngineFailure, the_queue_is_bounded) {
  JobOptions options;
  options.engine.queue_capacity = 2;
  TestJob(2, options).Run([&](Engine& engine, int) {
    std::vector<std::vector<float>> values(3, std::vector<float>{1.0f});
    std::vector<Request> requests;
    for (size_t i = 0; i < 3; ++i) {
      requests.push_back(MakeRequest("x" + std::to_string(i), Kind::kAllreduce, values[i]));
    }
    std::vector<Handle> handles(3);
    EXPECT_EQ(engine.Submit(requests, handles).code(), Code::kResourceExhausted);
  });
}

TEST(EngineTimeline, events_are_on_disk_soon_without_a_stop) {
  const std::string path = "/tmp/rabit_timeline_flush." + std::to_string(::getpid()) + ".json";
  TestJob(1).Run([&](Engine& engine, int) {
    EXPECT_OK(engine.StartTimeline(path, false));
    std::vector<float> values = {1.0f};
    (void)RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, values));
    bool is_written = false;
    const Deadline deadline = Soon();
    while (!is_written && std::chrono::steady_clock::now() < deadline) {
      std::ifstream file(path);
      const std::string text((std::istreambuf_iterator<char>(file)),
                             std::istreambuf_iterator<char>());
      is_written = Has(text, "\"ALLREDUCE\"") && text.ends_with("\n]\n");
    }
    EXPECT_TRUE(is_written);
  });
  std::remove(path.c_str());
}

TEST(EngineTimeline, events_of_every_stage_are_written_as_one_json_array) {
  const std::string path = "/tmp/rabit_timeline_test." + std::to_string(::getpid()) + ".json";
  TestJob(2).Run([&](Engine& engine, int rank) {
    if (rank == 0) {
      EXPECT_OK(engine.StartTimeline(path, true));
    }
    std::vector<std::vector<float>> values(2, std::vector<float>(10, 1.0f));
    Request requests[] = {MakeRequest("a\"b", Kind::kAllreduce, values[0]),
                          MakeRequest("c", Kind::kAllreduce, values[1])};
    Handle handles[2];
    ASSERT_OK(engine.Submit(requests, handles));
    for (Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
    if (rank == 0) {
      EXPECT_EQ(engine.StartTimeline(path, true).code(), Code::kInvalidArgument);
      EXPECT_OK(engine.StopTimeline());
      EXPECT_EQ(engine.StopTimeline().code(), Code::kInvalidArgument);
    }
  });
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (const char* part : {"NEGOTIATE_ALLREDUCE", "QUEUE", "MEMCPY_IN_FUSION_BUFFER",
                           "\"ALLREDUCE\"", "MEMCPY_OUT_FUSION_BUFFER", "CYCLE_START",
                           "allreduce.a\\\"b", "allreduce.c", "\"algorithm\"", "\"bytes\":80"}) {
    EXPECT_TRUE(Has(text, part)) << part;
  }
  EXPECT_TRUE(text.starts_with("[\n"));
  EXPECT_TRUE(text.ends_with("\n]\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '{'), std::count(text.begin(), text.end(), '}'));
  std::remove(path.c_str());
}

TEST(EngineTimeline, a_disk_that_takes_nothing_does_not_end_the_job) {
  TestJob(1).Run([&](Engine& engine, int) {
    EXPECT_OK(engine.StartTimeline("/dev/full", false));
    std::vector<float> values = {1.0f};
    EXPECT_EQ(RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, values)), values);
    const Status stopped = engine.StopTimeline();
    EXPECT_EQ(stopped.code(), Code::kResourceExhausted);
    EXPECT_TRUE(Has(stopped.message(), "'/dev/full' is incomplete")) << stopped;
    EXPECT_EQ(RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, values)), values);
  });
}

TEST(EngineTimeline, names_that_begin_with_their_kind_keep_their_row) {
  EXPECT_EQ(TimelineRow(Kind::kBroadcast, "conv1.weight"), "broadcast.conv1.weight");
  EXPECT_EQ(TimelineRow(Kind::kBroadcast, "broadcast.conv1.weight"), "broadcast.conv1.weight");
  EXPECT_EQ(TimelineRow(Kind::kAllreduce, "broadcast.x"), "allreduce.broadcast.x");
}

// Holds what rank 1 sends rank 2 until rank 0 has stopped, or for a while.
class HeldTransport final : public TransportWrapper {
 public:
  HeldTransport(std::unique_ptr<Transport> inner, Gate& gate, std::atomic<bool>& was_opened)
      : TransportWrapper(std::move(inner)), gate_(gate), was_opened_(was_opened) {}
  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    if (peer == 2 && gate_.Wait(std::chrono::milliseconds(300))) was_opened_.store(true);
    return inner().Send(peer, tag, buffer);
  }

 private:
  Gate& gate_;
  std::atomic<bool>& was_opened_;
};

// Two ranks stop with a tensor open, whose part on rank 0 ends long before theirs.
TEST(EngineFailure, nobody_stops_while_others_still_exchange) {
  Gate gate;
  std::atomic<bool> stopped_early{false};
  JobOptions options;
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank != 1) return inner;
    return std::make_unique<HeldTransport>(std::move(inner), gate, stopped_early);
  };
  TestJob job(3, options);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 3; ++rank) engines.push_back(job.Start(rank));
  RunRanks(3, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    std::vector<float> values = {static_cast<float>(rank)};
    const Handle handle = SubmitOne(engine, MakeRequest("x", Kind::kAllgather, values));
    if (rank == 0) {
      EXPECT_OK(engine.Wait(handle, Soon()));
    }
    EXPECT_OK(engine.Stop(Soon()));
    if (rank == 0) gate.Open();
    EXPECT_OK(engine.Wait(handle, Soon())) << "rank " << rank;
  });
  EXPECT_FALSE(stopped_early.load());
}

// Says when it is gone.
class NotingBackend final : public Backend {
 public:
  explicit NotingBackend(std::unique_ptr<Backend> inner, std::vector<std::string>& gone)
      : inner_(std::move(inner)), gone_(gone) {}
  ~NotingBackend() override { gone_.emplace_back("backend"); }
  std::string_view name() const override { return inner_->name(); }
  void Abort(Status why) override { inner_->Abort(std::move(why)); }

 private:
  const std::unique_ptr<Backend> inner_;
  std::vector<std::string>& gone_;
};

TEST(EngineFailure, what_a_backend_stands_on_outlives_it) {
  std::vector<std::string> gone;
  JobOptions options;
  options.wrap_backend = [&](int, std::unique_ptr<Backend> inner) {
    return std::make_unique<NotingBackend>(std::move(inner), gone);
  };
  options.ground =
      std::shared_ptr<const void>(&gone, [&gone](const void*) { gone.emplace_back("ground"); });
  TestJob job(1, std::move(options));

  std::unique_ptr<Engine> engine = job.Start(0);
  job.DropGround();
  EXPECT_TRUE(gone.empty());
  engine.reset();

  EXPECT_EQ(gone, (std::vector<std::string>{"backend", "ground"}));
}

}  // namespace
}  // namespace rabit

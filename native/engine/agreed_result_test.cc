// Allreduces that are negotiated with their data; ranks are threads.
#include "engine/agreed_result.h"

#include <cmath>
#include <random>
#include <thread>

#include "testing/engine_job.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::JobOptions;
using testing::MakeRequest;
using testing::Soon;
using testing::TestJob;

JobOptions WithInline(int64_t bytes = 1024) {
  JobOptions options;
  options.engine.inline_bytes = bytes;
  return options;
}

// Requests that this rank's engine has finished with their agreements.
int64_t Inlined(const Engine& engine) {
  const std::string json = engine.StatisticsJson();
  const std::string key = "\"inlined\":";
  return std::strtoll(json.c_str() + json.find(key) + key.size(), nullptr, 10);
}

Group World(int size, int my_index = 0) {
  Group world;
  for (int rank = 0; rank < size; ++rank) world.ranks.push_back(rank);
  world.my_index = my_index;
  return world;
}

std::vector<float> Numbers(int64_t count, int first) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(first) + 0.1f * static_cast<float>(i);
  return values;
}

struct Outcome {
  std::vector<float> values;
  std::vector<int64_t> shape;
  std::vector<int64_t> splits;
};

// Waits for it in Run; or submits it beside another one, for of one alone the engine may guess
// that it is waited for.
Outcome ResultOf(Engine& engine, Request request, bool waits) {
  Handle handles[2];
  if (waits) {
    EXPECT_OK(engine.Run(std::move(request), handles[0], Soon()));
  } else {
    Request requests[] = {std::move(request), Request{}};
    requests[1].name = "beside";
    requests[1].signature.kind = Kind::kBarrier;
    EXPECT_OK(engine.Submit(requests, handles));
    EXPECT_OK(engine.Wait(handles[1], Soon()));
    engine.Release(handles[1]);
  }
  Outcome outcome;
  EXPECT_OK(engine.Wait(handles[0], Soon()));
  if (const Result<HandleOutput> output = engine.Output(handles[0]); output.ok()) {
    const auto* const begin = static_cast<const float*>(output->view.data);
    outcome = {{begin, begin + output->view.count}, output->shape, output->received_splits};
  }
  engine.Release(handles[0]);
  return outcome;
}

struct Case {
  DType dtype;
  ReduceOp op;
  double prescale;
  double postscale;
  int64_t count;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                              ReduceOp::kProduct, ReduceOp::kBitAnd, ReduceOp::kBitOr}) {
      if (!Supports(static_cast<DType>(dtype), op)) continue;
      cases.push_back({static_cast<DType>(dtype), op, 1.0, 1.0, 1});
      cases.push_back({static_cast<DType>(dtype), op, 1.0, 1.0, 33});
      if (IsFloat(static_cast<DType>(dtype)))
        cases.push_back({static_cast<DType>(dtype), op, 0.3, 1.7, 7});
    }
  }
  return cases;
}

Request RequestOf(const std::string& name, const Case& of, std::vector<std::byte>& memory) {
  Request request;
  request.name = name;
  request.signature.dtype = of.dtype;
  request.signature.op = of.op;
  request.signature.prescale = of.prescale;
  request.signature.postscale = of.postscale;
  request.signature.shape = {of.count};
  request.input = TensorView{memory.data(), of.count, of.dtype, {}};
  request.output = request.input;
  return request;
}

std::vector<std::byte> RandomInput(const Case& of, std::mt19937& random) {
  std::vector<std::byte> memory(static_cast<size_t>(of.count) * SizeOf(of.dtype));
  if (of.dtype == DType::kBool) {
    for (std::byte& each : memory) each = static_cast<std::byte>(random() % 2);
    return memory;
  }
  if (!IsFloat(of.dtype)) {
    for (std::byte& each : memory) each = static_cast<std::byte>(random());
    return memory;
  }
  std::vector<double> values(static_cast<size_t>(of.count));
  for (double& each : values) each = static_cast<double>(random()) / 1e9 - 2;
  Convert(DType::kFloat64, reinterpret_cast<const std::byte*>(values.data()), of.dtype,
          memory.data(), of.count);
  return memory;
}

TEST(EngineInline, has_the_bits_of_the_ordinary_path_for_every_type_and_operation) {
  for (const int size : {1, 2, 3, 5, 9}) {
    TestJob(size, WithInline()).Run([&](Engine& engine, int rank) {
      std::mt19937 random(static_cast<uint32_t>(rank) + 1);
      const std::vector<Case> cases = AllCases();
      for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < cases.size(); ++i) {
          std::vector<std::byte> blocking = RandomInput(cases[i], random);
          std::vector<std::byte> ordinary = blocking;
          const std::string name = std::to_string(i);
          Handle handle;
          ASSERT_OK(engine.Run(RequestOf("run." + name, cases[i], blocking), handle, Soon()));
          engine.Release(handle);
          // Two at once, because of one alone the engine may guess that it is waited for.
          Request requests[] = {RequestOf("submit." + name, cases[i], ordinary), Request{}};
          requests[1].name = "beside";
          requests[1].signature.kind = Kind::kBarrier;
          Handle handles[2];
          ASSERT_OK(engine.Submit(requests, handles));
          for (const Handle each : handles) {
            ASSERT_OK(engine.Wait(each, Soon()));
            engine.Release(each);
          }
          ASSERT_TRUE(blocking == ordinary)
              << Name(cases[i].dtype) << ' ' << Name(cases[i].op) << ", " << size << " ranks";
        }
      }
      EXPECT_EQ(Inlined(engine), static_cast<int64_t>(2 * cases.size()));
    });
  }
}

TEST(EngineInline, only_what_is_small_and_waited_for_carries_its_data) {
  const Group world = World(3);
  std::vector<float> values(4, 1.0f);
  Request request = MakeRequest("x", Kind::kAllreduce, values);
  EXPECT_FALSE(CarriesData(request, 1024, world));  // nobody waits
  request.is_waited_for = true;
  EXPECT_TRUE(CarriesData(request, 1024, world));
  EXPECT_TRUE(CarriesData(request, 16, world));
  EXPECT_FALSE(CarriesData(request, 15, world));
  EXPECT_FALSE(CarriesData(request, 0, world));
  request.signature.codec = "fp16";
  EXPECT_FALSE(CarriesData(request, 1024, world));
  request.signature.codec.clear();
  request.signature.backend = 0;  // by name
  EXPECT_FALSE(CarriesData(request, 1024, world));
  request.signature.backend = kAnyBackend;
  request.signature.splits = {1, 3};
  EXPECT_FALSE(CarriesData(request, 1024, world));
  request.signature.splits.clear();
  request.input.count = 0;
  EXPECT_FALSE(CarriesData(request, 1024, world));
}

TEST(EngineInline, each_kind_counts_what_the_agreement_has_to_bring) {
  const Group world = World(3, 1);
  std::vector<float> values(4, 1.0f);
  const auto carries = [&](Kind kind, int64_t bytes_max, int root = -1) {
    Request request = MakeRequest("x", kind, values);
    request.is_waited_for = true;
    request.signature.root = root;
    return CarriesData(request, bytes_max, world);
  };
  for (const Kind kind : {Kind::kAllreduce, Kind::kReduceScatter}) {
    EXPECT_TRUE(carries(kind, 16));
    EXPECT_FALSE(carries(kind, 15));
  }
  EXPECT_TRUE(carries(Kind::kReduce, 16, 0));
  EXPECT_TRUE(carries(Kind::kBroadcast, 16, 1));
  EXPECT_FALSE(carries(Kind::kBroadcast, 15, 1));
  EXPECT_FALSE(carries(Kind::kBroadcast, 16, 0));  // has nothing to bring
  for (const Kind kind : {Kind::kAllgather, Kind::kAlltoall}) {
    EXPECT_TRUE(carries(kind, 3 * 16));
    EXPECT_FALSE(carries(kind, 3 * 16 - 1));
  }
  for (const Kind kind : {Kind::kGather, Kind::kScatter, Kind::kSend, Kind::kRecv, Kind::kVote})
    EXPECT_FALSE(carries(kind, 1024, 0));
}

TEST(EngineInline, a_result_of_another_size_is_not_written) {
  std::vector<float> values(2, 1.0f);
  NamedTensor named;
  PendingRequest pending(Handle{1}, MakeRequest("x", Kind::kAllreduce, values), named,
                         std::chrono::microseconds(0), 0);
  ReadyTensor ready;
  ready.name = "x";
  ready.signature.shape = {3};
  ready.data.resize(8);
  SetResult(pending, ready, World(2));
  ASSERT_TRUE(pending.DropHold());
  pending.Finish();

  EXPECT_EQ(pending.status().message(), "rank 0 sent 8 bytes as the result of 'x', which has 12");
}

// What is brought along and what is exchanged must be the same, value by value.
TEST(EngineInline, every_kind_has_the_result_of_the_ordinary_path) {
  for (const int size : {1, 2, 3, 5}) {
    TestJob(size, WithInline()).Run([&](Engine& engine, int rank) {
      int64_t expected = 0;
      for (const Kind kind : {Kind::kBroadcast, Kind::kReduce, Kind::kReduceScatter,
                              Kind::kAllgather, Kind::kAlltoall}) {
        for (int i = 0; i < 6; ++i) {  // other rows under the same name, too
          const int64_t rows = kind == Kind::kAlltoall    ? size * (1 + i % 2)
                               : kind == Kind::kAllgather ? 1 + (i % 3 > 0 ? (rank + i) % 3 : 0)
                                                          : 4 + i % 2;
          const std::vector<float> input = Numbers(rows * 3, rank * 100 + i);
          const auto call = [&](const std::string& how, bool waits) {
            std::vector<float> values = input;
            Request request = MakeRequest(how + std::string(Name(kind)), kind, values, {rows, 3});
            if (TraitsOf(kind).is_rooted) request.signature.root = size - 1;
            request.signature.op = i % 2 == 0 ? ReduceOp::kAverage : ReduceOp::kSum;
            request.signature.prescale = 0.5;  // of what is reduced
            request.signature.postscale = i == 5 ? 3.0 : 1.0;
            return ResultOf(engine, std::move(request), waits);
          };
          const Outcome carried = call("run.", true);
          const Outcome ordinary = call("submit.", false);
          ASSERT_TRUE(carried.values == ordinary.values)
              << Name(kind) << ", call " << i << ", " << size << " ranks";
          EXPECT_TRUE(carried.shape == ordinary.shape);
          EXPECT_TRUE(carried.splits == ordinary.splits);
          ++expected;
        }
      }
      EXPECT_EQ(Inlined(engine), expected);
    });
  }
}

// Where a rank cuts it in its own way, or has more of it to cut.
TEST(EngineInline, an_alltoall_that_is_not_even_is_exchanged) {
  TestJob(2, WithInline()).Run([](Engine& engine, int rank) {
    for (int i = 0; i < 6; ++i) {
      const bool is_even = i % 3 == 0;
      const bool has_more = i % 3 == 2;
      std::vector<float> values(rank == 1 && has_more ? 4 : 2, static_cast<float>(rank));
      Request request = MakeRequest("x", Kind::kAlltoall, values);
      if (i % 3 == 1 && rank == 1) request.signature.splits = {2, 0};
      const Outcome outcome = ResultOf(engine, std::move(request), true);
      const std::vector<float> odd =
          rank == 0 || has_more ? std::vector<float>{0, 1, 1} : std::vector<float>{0};
      EXPECT_TRUE(outcome.values == (is_even ? std::vector<float>{0, 1} : odd)) << "call " << i;
    }
    EXPECT_EQ(Inlined(engine), 2);
  });
}

TEST(EngineInline, a_broadcast_brings_what_the_root_waits_for) {
  TestJob(3, WithInline()).Run([](Engine& engine, int rank) {
    for (int i = 0; i < 12; ++i) {
      const bool root_waits = i % 3 > 0;
      std::vector<float> values = {static_cast<float>(rank == 1 ? i : -1)};
      Request request = MakeRequest("x", Kind::kBroadcast, values);
      request.signature.root = 1;
      request.output = request.input;
      Handle handle;
      if (!root_waits) {
        (void)ResultOf(engine, std::move(request), false);
      } else if (rank == 1 || (rank + i) % 2 == 0) {
        ASSERT_OK(engine.Run(std::move(request), handle, Soon()));
      } else {
        ASSERT_OK(engine.Submit(std::span(&request, 1), std::span(&handle, 1)));
        ASSERT_OK(engine.Wait(handle, Soon()));
      }
      engine.Release(handle);
      EXPECT_EQ(values[0], static_cast<float>(i));
    }
    EXPECT_EQ(Inlined(engine), 8);
  });
}

// One name; how each rank calls is drawn anew every time, and so is the tree between them.
void RunMixed(int size, int fan_out) {
  JobOptions options = WithInline();
  options.fan_out = fan_out;
  TestJob(size, options).Run([size](Engine& engine, int rank) {
    std::mt19937 common(5);
    std::mt19937 own(static_cast<uint32_t>(rank) + 1);
    for (int i = 0; i < 120; ++i) {
      const bool all_wait = common() % 2 == 0;
      const size_t count = common() % 3 + 1;  // another one is announced in full
      std::vector<float> values(count, static_cast<float>(rank + i));
      Request request = MakeRequest("x", Kind::kAllreduce, values);
      request.output = request.input;
      Handle handle;
      if (all_wait || own() % 2 == 0) {
        ASSERT_OK(engine.Run(std::move(request), handle, Soon()));
      } else {
        ASSERT_OK(engine.Submit(std::span(&request, 1), std::span(&handle, 1)));
        ASSERT_OK(engine.Wait(handle, Soon()));
      }
      engine.Release(handle);
      const auto sum = static_cast<float>(size * (size - 1) / 2 + size * i);
      ASSERT_EQ(values, std::vector<float>(count, sum)) << "call " << i;
    }
    EXPECT_GT(Inlined(engine), 20);
    EXPECT_LT(Inlined(engine), 120);
  });
}

TEST(EngineInline, ranks_that_bring_data_and_ranks_that_do_not_agree) {
  RunMixed(2, 0);
  RunMixed(5, 0);
}

TEST(EngineInline, data_passes_through_the_ranks_of_a_tree) {
  RunMixed(7, 1);
  RunMixed(9, 2);
}

TEST(EngineInline, blocking_threads_and_steps_in_flight_keep_apart) {
  TestJob(3, WithInline()).Run([](Engine& engine, int rank) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&engine, t] {
        for (int i = 0; i < 60; ++i) {
          std::vector<int64_t> values = {t + i};
          Request request = MakeRequest("thread." + std::to_string(t), Kind::kAllreduce, values);
          request.output = request.input;
          Handle handle;
          EXPECT_OK(engine.Run(std::move(request), handle, Soon()));
          engine.Release(handle);
          EXPECT_EQ(values[0], 3 * (t + i));
        }
      });
    }
    for (int step = 0; step < 40; ++step) {
      std::vector<std::vector<float>> values(20, std::vector<float>(50, 1.0f));
      std::vector<Request> requests;
      for (size_t i = 0; i < values.size(); ++i) {
        const size_t at = rank == 1 ? values.size() - 1 - i : i;
        requests.push_back(
            MakeRequest("gradient." + std::to_string(at), Kind::kAllreduce, values[at]));
        requests.back().output = requests.back().input;
      }
      std::vector<Handle> handles(requests.size());
      ASSERT_OK(engine.Submit(requests, handles));
      for (Handle handle : handles) {
        ASSERT_OK(engine.Wait(handle, Soon()));
        engine.Release(handle);
      }
      for (const auto& each : values) ASSERT_EQ(each, std::vector<float>(50, 3.0f));
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(Inlined(engine), 180);
  });
}

TEST(EngineInline, a_group_averages_over_its_own_ranks) {
  TestJob(3, WithInline()).Run([](Engine& engine, int rank) {
    const std::vector<int> members = {0, 2};
    const Result<GroupId> group = engine.AddGroup(members, Soon());
    ASSERT_OK(group);
    for (int i = 0; i < 5 && rank != 1; ++i) {
      std::vector<float> values = {static_cast<float>(rank + i)};
      Request request = MakeRequest("mean", Kind::kAllreduce, values);
      request.output = request.input;
      request.signature.op = ReduceOp::kAverage;
      request.signature.group = *group;
      Handle handle;
      ASSERT_OK(engine.Run(std::move(request), handle, Soon()));
      engine.Release(handle);
      EXPECT_EQ(values[0], static_cast<float>(1 + i));
    }
    EXPECT_EQ(Inlined(engine), rank == 1 ? 0 : 5);
  });
}

TEST(EngineInline, ranks_that_differ_get_the_usual_error_and_go_on) {
  TestJob(3, WithInline()).Run([](Engine& engine, int rank) {
    for (int i = 0; i < 6; ++i) {
      std::vector<float> values(i % 2 == 1 && rank == 2 ? 2 : 1, 1.0f);
      Request request = MakeRequest("x", Kind::kAllreduce, values);
      request.output = request.input;
      Handle handle;
      const Status status = engine.Run(std::move(request), handle, Soon());
      engine.Release(handle);
      EXPECT_EQ(status.code(), i % 2 == 1 ? Code::kMismatch : Code::kOk) << status.message();
      if (i % 2 == 0) {
        EXPECT_EQ(values[0], 3.0f);
      }
    }
  });
}

TEST(EngineInline, a_rank_that_has_joined_counts_as_nothing) {
  TestJob(3, WithInline()).Run([](Engine& engine, int rank) {
    const auto sum = [&](float expected) {
      std::vector<float> values = {1.0f};
      Request request = MakeRequest("x", Kind::kAllreduce, values);
      request.output = request.input;
      Handle handle;
      ASSERT_OK(engine.Run(std::move(request), handle, Soon()));
      engine.Release(handle);
      EXPECT_EQ(values[0], expected);
    };
    sum(3.0f);
    if (rank < 2) {
      for (int i = 0; i < 3; ++i) sum(2.0f);
    }
    Request join;
    join.name = "join";
    join.signature.kind = Kind::kJoin;
    (void)testing::RunOne<int32_t>(engine, std::move(join));
    sum(3.0f);
    EXPECT_GE(Inlined(engine), 2);
  });
}

TEST(EngineInline, a_caller_sees_another_rank_leave) {
  TestJob job(3, WithInline());
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 3; ++rank) engines.push_back(job.Start(rank));
  testing::RunRanks(3, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    const auto sum = [&] {
      std::vector<float> values = {1.0f};
      Handle handle;
      const Status status = engine.Run(MakeRequest("x", Kind::kAllreduce, values), handle, Soon());
      engine.Release(handle);
      return status;
    };
    EXPECT_OK(sum());
    if (rank == 1) {
      engines[1].reset();  // leaves without asking
      return;
    }
    const Status status = sum();
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(status.message().find("'x'") != std::string::npos) << status.message();
    (void)engine.Stop(Soon());
  });
}

}  // namespace
}  // namespace rabit

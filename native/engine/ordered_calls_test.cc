// Operations that callers run themselves; ranks are threads.
#include <memory>
#include <numeric>
#include <vector>

#include "engine/engine.h"
#include "testing/engine_job.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::Has;
using testing::MakeRequest;
using testing::Soon;
using testing::TestJob;

template <class T>
TensorView ViewOf(std::vector<T>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), testing::DTypeOf<T>(), {}};
}

template <class T>
OrderedCall CallOf(Kind kind, std::vector<T>& input, std::vector<T>& output) {
  OrderedCall call;
  call.kind = kind;
  call.input = ViewOf(input);
  call.output = ViewOf(output);
  return call;
}

TEST(OrderedCalls, allreduce_combines_and_scales_like_the_negotiated_one) {
  for (int size : {1, 2, 3, 5}) {
    TestJob(size).Run([&](Engine& engine, int rank) {
      std::vector<float> input = {static_cast<float>(rank + 1), 10}, output(2);
      OrderedCall call = CallOf(Kind::kAllreduce, input, output);
      EXPECT_OK(engine.RunOrdered(call, Soon()));
      const auto sum = static_cast<float>(size * (size + 1) / 2);
      EXPECT_EQ(output, (std::vector<float>{sum, static_cast<float>(10 * size)}));
      EXPECT_EQ(input[0], static_cast<float>(rank + 1));  // untouched

      call.op = ReduceOp::kAverage;
      call.prescale = 2;
      call.postscale = 3;
      EXPECT_OK(engine.RunOrdered(call, Soon()));
      EXPECT_EQ(output[1], 60.0f);

      std::vector<int32_t> numbers = {-(rank + 1), 7};
      OrderedCall average = CallOf(Kind::kAllreduce, numbers, numbers);
      average.op = ReduceOp::kAverage;
      EXPECT_OK(engine.RunOrdered(average, Soon()));
      EXPECT_EQ(numbers, (std::vector<int32_t>{-(size * (size + 1) / 2 / size), 7}));
    });
  }
}

TEST(OrderedCalls, the_kinds_that_move_data_move_it_by_rank) {
  for (int size : {1, 2, 3, 4}) {
    TestJob(size).Run([&](Engine& engine, int rank) {
      const auto ranks = static_cast<size_t>(size);
      std::vector<int32_t> mine = {rank, -rank}, all(2 * ranks);
      EXPECT_OK(engine.RunOrdered(CallOf(Kind::kAllgather, mine, all), Soon()));
      for (int i = 0; i < size; ++i) EXPECT_EQ(all[2 * static_cast<size_t>(i) + 1], -i);

      std::vector<int32_t> parts(ranks), got(ranks), part(1);
      std::iota(parts.begin(), parts.end(), 10 * rank);
      EXPECT_OK(engine.RunOrdered(CallOf(Kind::kAlltoall, parts, got), Soon()));
      for (int i = 0; i < size; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], 10 * i + rank);

      EXPECT_OK(engine.RunOrdered(CallOf(Kind::kReduceScatter, parts, part), Soon()));
      EXPECT_EQ(part[0], 10 * size * (size - 1) / 2 + size * rank);
      EXPECT_EQ(parts[0], 10 * rank);  // untouched

      std::vector<int32_t> value = {rank};
      OrderedCall broadcast = CallOf(Kind::kBroadcast, value, value);
      broadcast.root = size - 1;
      EXPECT_OK(engine.RunOrdered(broadcast, Soon()));
      EXPECT_EQ(value[0], size - 1);

      OrderedCall barrier;
      barrier.kind = Kind::kBarrier;
      EXPECT_OK(engine.RunOrdered(barrier, Soon()));
    });
  }
}

TEST(OrderedCalls, negotiated_requests_in_flight_do_not_disturb_them) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    std::vector<float> slow(1000, 1.0f), quick = {1.0f};
    for (int i = 0; i < 50; ++i) {
      Request request = MakeRequest("x", Kind::kAllreduce, slow);
      Handle handle;
      // Each rank submits at another moment of the loop: the order differs.
      const bool submits_first = (i + rank) % 2 == 0;
      if (submits_first) {
        ASSERT_OK(engine.Submit({&request, 1}, {&handle, 1}));
      }
      quick[0] = 1.0f;
      ASSERT_OK(engine.RunOrdered(CallOf(Kind::kAllreduce, quick, quick), Soon()));
      EXPECT_EQ(quick[0], 3.0f);
      if (!submits_first) {
        ASSERT_OK(engine.Submit({&request, 1}, {&handle, 1}));
      }
      ASSERT_OK(engine.Wait(handle, Soon()));
      engine.Release(handle);
    }
  });
}

TEST(OrderedCalls, groups_count_their_calls_apart) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    const int members[] = {0, 2};
    const Result<GroupId> group = engine.AddGroup(members, Soon());
    ASSERT_OK(group);
    std::vector<int32_t> values = {1};
    OrderedCall call = CallOf(Kind::kAllreduce, values, values);
    call.group = *group;
    if (rank != 1) {
      EXPECT_OK(engine.RunOrdered(call, Soon()));
      EXPECT_EQ(values[0], 2);
    } else {
      EXPECT_EQ(engine.RunOrdered(call, Soon()).code(), Code::kInvalidArgument);
    }
    values[0] = 1;
    call.group = kWorld;
    EXPECT_OK(engine.RunOrdered(call, Soon()));
    EXPECT_EQ(values[0], 3);
  });
}

TEST(OrderedCalls, what_cannot_work_is_refused_before_anything_is_sent) {
  TestJob(2).Run([&](Engine& engine, int) {
    std::vector<float> two(2, 1.0f), three(3, 1.0f);
    std::vector<int32_t> whole = {1, 1};
    const auto message = [&](OrderedCall call) {
      const Status status = engine.RunOrdered(call, Soon());
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      return status.message();
    };
    EXPECT_TRUE(Has(message(CallOf(Kind::kAllreduce, two, three)), "2 elements"));
    EXPECT_TRUE(Has(message(CallOf(Kind::kAllgather, two, three)), "2 ranks"));
    EXPECT_TRUE(Has(message(CallOf(Kind::kAlltoall, two, two)), "other memory"));
    EXPECT_TRUE(Has(message(CallOf(Kind::kGather, two, two)), "needs the negotiation"));
    OrderedCall call = CallOf(Kind::kBroadcast, two, two);
    call.root = 5;
    EXPECT_TRUE(Has(message(call), "root 5"));
    call = CallOf(Kind::kAllreduce, two, two);
    call.op = ReduceOp::kBitAnd;
    EXPECT_EQ(engine.RunOrdered(call, Soon()).code(), Code::kUnsupported);
    call.output = ViewOf(whole);
    EXPECT_TRUE(Has(message(call), "one dtype"));
    // Nothing of this has reached the other rank.
    EXPECT_OK(engine.RunOrdered(CallOf(Kind::kAllreduce, whole, whole), Soon()));
    EXPECT_EQ(whole[0], 2);
  });
}

TEST(OrderedCalls, calls_that_differ_are_never_combined) {
  TestJob job(2);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 2; ++rank) engines.push_back(job.Start(rank));
  testing::RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    std::vector<float> values = {1.0f, 2.0f};
    OrderedCall call = CallOf(Kind::kAllreduce, values, values);
    if (rank == 1) call.op = ReduceOp::kMax;  // as many bytes, another operation
    const Status status = engine.RunOrdered(call, After(std::chrono::milliseconds(200)));
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(Has(status.message(), "same order")) << status.message();
    // The engine has failed as a whole.
    EXPECT_FALSE(engine.RunOrdered(call, Soon()).ok());
    EXPECT_FALSE(engine.Stop(Soon()).ok());
  });
}

// What the others exchange with it afterwards would take what is left of the first one.
TEST(OrderedCalls, another_exchange_that_fails_on_one_rank_fails_the_engine_of_all) {
  TestJob job(2);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 2; ++rank) engines.push_back(job.Start(rank));
  testing::RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    const auto refused = [] { return InvalidArgument("no such flow"); };
    EXPECT_EQ(engine.RunOrdered("a measurement", refused).code(), Code::kInvalidArgument);
    const Status first = engine.RunOrdered("a measurement", [&]() -> Status {
      return rank == 0 ? TimedOut("nothing came") : Status();
    });
    EXPECT_EQ(first.ok(), rank == 1);

    std::vector<float> input = {1};
    Status later;
    (void)testing::RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, input), &later);
    const Status second = engine.RunOrdered("a measurement", [] {
      ADD_FAILURE() << "it runs on a broken stream";
      return Status();
    });
    EXPECT_TRUE(Has(second.message(), "a measurement on rank 0: nothing came")) << second;
  });
}

}  // namespace
}  // namespace rabit

// Whole engines, ranks as threads: every kind, and what must not change the results.
#include "engine/engine.h"

#include <numeric>
#include <random>
#include <set>

#include "testing/engine_job.h"

namespace rabit {
namespace {

using testing::JobOptions;
using testing::MakeRequest;
using testing::RunOne;
using testing::TestJob;

const std::vector<int> kSizes = {1, 2, 3, 5};

std::vector<float> Ramp(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(rank + 1) * static_cast<float>(i + 1);
  return values;
}

float RankSum(int size) { return static_cast<float>(size * (size + 1)) / 2; }

TEST(Engine, allreduce_sums_over_all_ranks) {
  for (int size : kSizes) {
    TestJob(size).Run([&](Engine& engine, int rank) {
      std::vector<float> input = Ramp(rank, 10);
      const std::vector<float> sum =
          RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, input));
      ASSERT_EQ(sum.size(), 10u);
      for (size_t i = 0; i < sum.size(); ++i) {
        EXPECT_EQ(sum[i], RankSum(size) * static_cast<float>(i + 1)) << size;
      }
      EXPECT_EQ(input[1], static_cast<float>(2 * (rank + 1)));  // untouched
    });
  }
}

TEST(Engine, average_divides_and_integers_truncate_toward_zero) {
  for (int size : kSizes) {
    TestJob(size).Run([&](Engine& engine, int rank) {
      std::vector<int32_t> input = {-(rank + 1), rank + 1, 7};
      Request request = MakeRequest("x", Kind::kAllreduce, input);
      request.signature.op = ReduceOp::kAverage;
      const auto average = RunOne<int32_t>(engine, std::move(request));
      const int sum = size * (size + 1) / 2;
      EXPECT_EQ(average, (std::vector<int32_t>{-(sum / size), sum / size, 7}));
    });
  }
}

TEST(Engine, prescale_and_postscale_are_applied_around_the_sum) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    std::vector<double> input = {1.0 + rank};
    Request request = MakeRequest("x", Kind::kAllreduce, input);
    request.signature.prescale = 0.5;
    request.signature.postscale = 10;
    EXPECT_EQ(RunOne<double>(engine, std::move(request)), std::vector<double>{30.0});
  });
}

TEST(Engine, an_output_that_is_the_input_is_reduced_in_place) {
  TestJob(2).Run([&](Engine& engine, int rank) {
    std::vector<float> values = Ramp(rank, 4);
    Request request = MakeRequest("x", Kind::kAllreduce, values);
    request.output = request.input;
    (void)RunOne<float>(engine, std::move(request));
    EXPECT_EQ(values, (std::vector<float>{3, 6, 9, 12}));
    EXPECT_TRUE(engine.StatisticsJson().find("\"in_place\":1") != std::string::npos);
  });
}

TEST(Engine, broadcast_from_every_root_reaches_all) {
  for (int size : kSizes) {
    TestJob(size).Run([&](Engine& engine, int rank) {
      for (int root = 0; root < size; ++root) {
        std::vector<float> values = Ramp(rank, 3);
        Request request = MakeRequest("x", Kind::kBroadcast, values);
        request.signature.root = root;
        request.output = request.input;
        EXPECT_EQ(RunOne<float>(engine, std::move(request)), Ramp(root, 3));
      }
    });
  }
}

TEST(Engine, a_broadcast_that_is_cut_moves_every_byte_once) {
  JobOptions options;
  options.limits.partition_bytes = 4 << 10;
  TestJob(3, options).Run([&](Engine& engine, int rank) {
    for (int root = 0; root < 3; ++root) {
      for (bool is_in_place : {true, false}) {
        std::vector<float> values = Ramp(rank, 10'007);
        Request request = MakeRequest("x", Kind::kBroadcast, values);
        request.signature.root = root;
        if (is_in_place) request.output = request.input;
        EXPECT_EQ(RunOne<float>(engine, std::move(request)), Ramp(root, 10'007));
      }
    }
    EXPECT_TRUE(engine.StatisticsJson().find("\"wire_bytes\":" + std::to_string(6 * 10'007 * 4)) !=
                std::string::npos);
  });
}

TEST(Engine, reduce_gives_the_result_to_the_root_only) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    std::vector<float> values = Ramp(rank, 3);
    Request request = MakeRequest("x", Kind::kReduce, values);
    request.signature.root = 1;
    const auto result = RunOne<float>(engine, std::move(request));
    if (rank == 1) {
      EXPECT_EQ(result, (std::vector<float>{6, 12, 18}));
    } else {
      EXPECT_EQ(values, Ramp(rank, 3));  // not used as scratch
    }
  });
}

TEST(Engine, allgather_joins_uneven_rows_in_rank_order) {
  for (int size : kSizes) {
    TestJob(size).Run([&](Engine& engine, int rank) {
      std::vector<int32_t> input(static_cast<size_t>(2 * rank), rank);  // rank rows of two
      HandleOutput output;
      const auto all = RunOne<int32_t>(engine, MakeRequest("x", Kind::kAllgather, input, {rank, 2}),
                                       nullptr, &output);
      std::vector<int32_t> expected;
      for (int r = 0; r < size; ++r) expected.insert(expected.end(), static_cast<size_t>(2 * r), r);
      EXPECT_EQ(all, expected);
      EXPECT_EQ(output.shape, (std::vector<int64_t>{size * (size - 1) / 2, 2}));
    });
  }
}

TEST(Engine, gather_collects_on_the_root) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    std::vector<int32_t> input(static_cast<size_t>(rank + 1), rank);
    Request request = MakeRequest("x", Kind::kGather, input);
    request.signature.root = 2;
    const auto all = RunOne<int32_t>(engine, std::move(request));
    if (rank == 2) {
      EXPECT_EQ(all, (std::vector<int32_t>{0, 1, 1, 2, 2, 2}));
    } else {
      EXPECT_TRUE(all.empty());
    }
  });
}

TEST(Engine, scatter_gives_each_rank_its_rows) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    std::vector<int32_t> input;
    if (rank == 1) input = {10, 20, 21, 30, 31, 32};
    Request request = MakeRequest("x", Kind::kScatter, input);
    request.signature.root = 1;
    if (rank == 1) request.signature.splits = {1, 2, 3};
    if (rank != 1) request.signature.shape.clear();
    const auto mine = RunOne<int32_t>(engine, std::move(request));
    const std::vector<std::vector<int32_t>> expected = {{10}, {20, 21}, {30, 31, 32}};
    EXPECT_EQ(mine, expected[static_cast<size_t>(rank)]);
  });
}

TEST(Engine, reducescatter_keeps_its_input_and_may_write_over_it) {
  for (const double prescale : {1.0, 2.0}) {
    TestJob(2).Run([prescale](Engine& engine, int rank) {
      std::vector<float> input = Ramp(rank, 4);
      Request request = MakeRequest("x", Kind::kReduceScatter, input);
      request.signature.prescale = prescale;
      const auto sum = static_cast<float>(3 * prescale);
      const std::vector<float> mine =
          rank == 0 ? std::vector<float>{1 * sum, 2 * sum} : std::vector<float>{3 * sum, 4 * sum};
      EXPECT_EQ(RunOne<float>(engine, request), mine);
      EXPECT_EQ(input, Ramp(rank, 4));

      request.output = request.input;  // to its start, which is rank 0's part
      EXPECT_EQ(RunOne<float>(engine, request), mine);
    });
  }
}

TEST(Engine, reducescatter_gives_low_ranks_the_extra_rows) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    std::vector<float> input = Ramp(rank, 10);  // five rows of two
    HandleOutput output;
    const auto mine = RunOne<float>(engine, MakeRequest("x", Kind::kReduceScatter, input, {5, 2}),
                                    nullptr, &output);
    const std::vector<std::vector<float>> expected = {{6, 12, 18, 24}, {30, 36, 42, 48}, {54, 60}};
    EXPECT_EQ(mine, expected[static_cast<size_t>(rank)]);
    EXPECT_EQ(output.shape, (std::vector<int64_t>{rank < 2 ? 2 : 1, 2}));
    EXPECT_EQ(input, Ramp(rank, 10));
  });
}

TEST(Engine, alltoall_sends_uneven_splits_and_reports_what_came) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    // Rank r sends j + r rows to rank j.
    std::vector<int64_t> splits;
    std::vector<int32_t> input;
    for (int j = 0; j < 3; ++j) {
      splits.push_back(j + rank);
      input.insert(input.end(), static_cast<size_t>(j + rank), 10 * rank + j);
    }
    Request request = MakeRequest("x", Kind::kAlltoall, input);
    request.signature.splits = splits;
    HandleOutput output;
    const auto received = RunOne<int32_t>(engine, std::move(request), nullptr, &output);
    std::vector<int32_t> expected;
    for (int r = 0; r < 3; ++r) {
      expected.insert(expected.end(), static_cast<size_t>(rank + r), 10 * r + rank);
    }
    EXPECT_EQ(received, expected);
    EXPECT_EQ(output.received_splits, (std::vector<int64_t>{rank, rank + 1, rank + 2}));
    // Rows for the other two ranks, and to each the number of its rows.
    const int wire_bytes = (3 + rank) * 4 + 2 * 8;
    EXPECT_TRUE(engine.StatisticsJson().find("\"wire_bytes\":" + std::to_string(wire_bytes) + ",") !=
                std::string::npos);
  });
}

// One name, step after step: even, even with other rows, uneven, one rank other than the rest.
TEST(Engine, an_alltoall_may_change_its_rows_from_step_to_step) {
  constexpr int kRanks = 3;
  TestJob(kRanks).Run([&](Engine& engine, int rank) {
    std::mt19937 steps(5);
    for (int step = 0; step < 40; ++step) {
      const auto rows = static_cast<int64_t>(steps() % 3);
      const unsigned form = steps() % 4;
      // Rank r sends rank j so many rows, each of which says both and the step.
      const auto rows_of = [&](int r, int j) -> int64_t {
        if (form < 2) return rows;
        if (form == 2) return r == 1 ? rows + 1 : rows;
        return (r + 2 * j + step) % 4;
      };
      std::vector<int32_t> input, expected;
      std::vector<int64_t> splits, from;
      for (int j = 0; j < kRanks; ++j) {
        splits.push_back(rows_of(rank, j));
        from.push_back(rows_of(j, rank));
        input.insert(input.end(), static_cast<size_t>(splits.back()), 100 * step + 10 * rank + j);
        expected.insert(expected.end(), static_cast<size_t>(from.back()),
                        100 * step + 10 * j + rank);
      }
      Request request = MakeRequest("moe", Kind::kAlltoall, input);
      if (form != 0) request.signature.splits = splits;
      HandleOutput output;
      EXPECT_EQ(RunOne<int32_t>(engine, std::move(request), nullptr, &output), expected) << step;
      EXPECT_EQ(output.received_splits, from) << step;
    }
  });
}

TEST(Engine, a_rank_that_has_joined_sends_no_rows_in_an_alltoall) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    for (const bool is_even : {true, false}) {
      if (rank != 1) {
        std::vector<int32_t> input = {10 * rank, 10 * rank + 1, 10 * rank + 2};
        Request request = MakeRequest("moe", Kind::kAlltoall, input);
        if (!is_even) request.signature.splits = {2, 0, 1};
        HandleOutput output;
        const auto got = RunOne<int32_t>(engine, std::move(request), nullptr, &output);
        std::vector<int32_t> expected = {rank, 20 + rank};
        if (!is_even) expected = rank == 0 ? std::vector{0, 1, 20, 21} : std::vector{2, 22};
        EXPECT_EQ(got, expected);
        const int64_t each = is_even ? 1 : rank == 0 ? 2 : 1;
        EXPECT_EQ(output.received_splits, (std::vector<int64_t>{each, 0, each}));
      }
      std::vector<int32_t> none;
      RunOne<int32_t>(engine, MakeRequest("join", Kind::kJoin, none));
    }
  });
}

TEST(Engine, send_and_recv_move_a_tensor_around_a_ring) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    std::vector<float> out = Ramp(rank, 5), in(5);
    Request send = MakeRequest("ring", Kind::kSend, out);
    send.signature.root = (rank + 1) % 3;
    Request recv = MakeRequest("ring", Kind::kRecv, in);
    recv.signature.root = (rank + 2) % 3;
    recv.output = recv.input;
    Request requests[] = {std::move(send), std::move(recv)};
    Handle handles[2];
    ASSERT_OK(engine.Submit(requests, handles));
    for (Handle handle : handles) EXPECT_OK(engine.Wait(handle, After(std::chrono::seconds(20))));
    EXPECT_EQ(in, Ramp((rank + 2) % 3, 5));
  });
}

TEST(Engine, barrier_waits_for_every_rank) {
  for (int size : kSizes) {
    std::atomic<int> arrived{0};
    TestJob(size).Run([&](Engine& engine, int) {
      ++arrived;
      std::vector<int32_t> none;
      (void)RunOne<int32_t>(engine, MakeRequest("b", Kind::kBarrier, none));
      EXPECT_EQ(arrived.load(), size);
    });
  }
}

TEST(Engine, zero_element_tensors_work_for_every_kind) {
  for (Kind kind : {Kind::kAllreduce, Kind::kAllgather, Kind::kBroadcast, Kind::kReduce,
                    Kind::kReduceScatter, Kind::kAlltoall, Kind::kGather, Kind::kScatter}) {
    TestJob(2).Run([&](Engine& engine, int) {
      std::vector<float> none;
      Request request = MakeRequest("empty", kind, none, {0, 3});
      request.signature.root = 0;
      EXPECT_TRUE(RunOne<float>(engine, std::move(request)).empty());
    });
  }
}

// Sizes of the gathered encodings differ between the ranks.
TEST(Engine, a_codec_sums_and_averages_and_keeps_the_residual) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    std::vector<float> input(100, 0.0f), residual(100, 0.0f);
    for (int i = 0; i <= rank; ++i) input[static_cast<size_t>(i)] = static_cast<float>(3 * i + 3);
    Request request = MakeRequest("x", Kind::kAllreduce, input);
    request.signature.codec = "topk:ratio=0.02,block=64,count=exact";
    request.signature.op = ReduceOp::kAverage;
    request.signature.prescale = 2.0;
    request.residual = request.input;
    request.residual.data = residual.data();
    const auto average = RunOne<float>(engine, std::move(request));
    // The larger of 6, 12 and 18 on every rank: 2% of 64 is one.
    EXPECT_EQ(average[0], 2.0f);
    EXPECT_EQ(average[1], 4.0f);
    EXPECT_EQ(average[2], 6.0f);
    EXPECT_EQ(residual[0], rank == 0 ? 0.0f : 6.0f);
    EXPECT_EQ(residual[1], rank == 2 ? 12.0f : 0.0f);
    EXPECT_EQ(residual[2], 0.0f);
  });
}

// Cutting and joining are how buckets come about; the result must not tell.
TEST(Engine, how_tensors_are_cut_and_joined_does_not_change_what_a_codec_gives) {
  std::vector<std::vector<float>> results;
  for (const int64_t partition_bytes : {int64_t{1} << 20, int64_t{3000}, int64_t{100}}) {
    JobOptions options;
    options.limits.partition_bytes = partition_bytes;
    options.limits.fusion_bytes = partition_bytes == 3000 ? 0 : 1 << 20;
    std::vector<float> result;
    TestJob(2, options).Run([&](Engine& engine, int rank) {
      std::vector<std::vector<float>> values(3);
      std::vector<Request> requests;
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = Ramp(rank, 700 + 50 * static_cast<int>(i));
        requests.push_back(MakeRequest("t" + std::to_string(i), Kind::kAllreduce, values[i]));
        requests.back().output = requests.back().input;
        requests.back().signature.codec = "levels:bits=3,block=64";
        requests.back().seed = 5;
      }
      std::vector<Handle> handles(requests.size());
      EXPECT_OK(engine.Submit(requests, handles));
      for (const Handle handle : handles) {
        EXPECT_OK(engine.Wait(handle, After(std::chrono::seconds(20))));
        engine.Release(handle);
      }
      if (rank == 0) {
        for (const auto& each : values) result.insert(result.end(), each.begin(), each.end());
      }
    });
    results.push_back(std::move(result));
  }
  EXPECT_TRUE(results[0] == results[1]);
  EXPECT_TRUE(results[0] == results[2]);
}

TEST(Engine, join_lets_the_others_go_on_and_names_the_last_rank) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    for (int step = 0; step <= rank; ++step) {
      std::vector<float> input = {1.0f};
      const auto sum = RunOne<float>(engine, MakeRequest("g", Kind::kAllreduce, input));
      EXPECT_EQ(sum, std::vector<float>{static_cast<float>(3 - step)}) << "step " << step;
    }
    std::vector<int32_t> none;
    const auto last = RunOne<int32_t>(engine, MakeRequest("join", Kind::kJoin, none));
    EXPECT_EQ(last, std::vector<int32_t>{2});
  });
}

// Many tensors of mixed sizes, submitted in another order on every rank.
std::vector<std::vector<float>> TrainStep(Engine& engine, int rank, unsigned seed) {
  constexpr size_t kTensors = 40;
  std::vector<std::vector<float>> values(kTensors);
  std::vector<Request> requests;
  std::mt19937 sizes(7), noise(static_cast<unsigned>(rank) + 1),
      order(seed + static_cast<unsigned>(rank));
  for (size_t i = 0; i < kTensors; ++i) {
    values[i].resize(sizes() % 3000);
    for (float& value : values[i]) value = static_cast<float>(noise()) * 1e-5f;
    Request request = MakeRequest("t" + std::to_string(i), Kind::kAllreduce, values[i]);
    request.output = request.input;
    request.signature.priority = static_cast<int>(i % 4);
    request.signature.op = i % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAverage;
    requests.push_back(std::move(request));
  }
  std::shuffle(requests.begin(), requests.end(), order);
  std::vector<Handle> handles(kTensors);
  EXPECT_OK(engine.Submit(requests, handles));
  for (Handle handle : handles) {
    EXPECT_OK(engine.Wait(handle, After(std::chrono::seconds(20))));
    engine.Release(handle);
  }
  return values;
}

TEST(Engine, results_are_bitwise_equal_whatever_the_fusion_and_partition_sizes) {
  std::vector<std::vector<float>> reference;
  for (bool is_fifo : {false, true}) {
    for (int64_t fusion : {0, 64 << 10, 64 << 20}) {
      for (int64_t partition : {4 << 10, 4 << 20}) {
        for (int64_t credit : {0, 16 << 10}) {
          JobOptions options;
          options.limits.fusion_bytes = fusion;
          options.limits.partition_bytes = partition;
          options.limits.credit_bytes = credit;
          options.is_fifo = is_fifo;
          std::vector<std::vector<std::vector<float>>> results(3);
          TestJob(3, options).Run([&](Engine& engine, int rank) {
            for (unsigned step = 0; step < 3; ++step) {
              results[static_cast<size_t>(rank)] = TrainStep(engine, rank, step);
            }
          });
          if (reference.empty()) reference = results[0];
          for (const auto& each : results) EXPECT_TRUE(each == reference) << fusion << partition;
        }
      }
    }
  }
}

TEST(Engine, groups_reduce_among_their_members) {
  TestJob(4).Run([&](Engine& engine, int rank) {
    const int low[] = {0, 1}, high[] = {3, 2};
    Result<GroupId> a = engine.AddGroup(low, After(std::chrono::seconds(20)));
    Result<GroupId> b = engine.AddGroup(high, After(std::chrono::seconds(20)));
    ASSERT_OK(a);
    ASSERT_OK(b);
    EXPECT_EQ(*a, 1);
    EXPECT_EQ(*b, 2);
    const GroupId mine = rank < 2 ? *a : *b;
    for (int step = 0; step < 5; ++step) {
      std::vector<float> input = {static_cast<float>(rank)};
      Request request = MakeRequest("x", Kind::kAllreduce, input);
      request.signature.group = mine;
      EXPECT_EQ(RunOne<float>(engine, std::move(request)),
                std::vector<float>{rank < 2 ? 1.f : 5.f});
    }
    EXPECT_OK(engine.RemoveGroup(*a, After(std::chrono::seconds(20))));
    std::vector<float> input = {1};
    Request request = MakeRequest("x", Kind::kAllreduce, input);
    request.signature.group = *a;
    Status status;
    (void)RunOne<float>(engine, std::move(request), &status);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
  });
}

TEST(Engine, a_group_that_differs_between_ranks_is_refused_by_name) {
  TestJob(2).Run([&](Engine& engine, int rank) {
    const int ranks[] = {0, 1};
    Result<GroupId> group =
        engine.AddGroup(std::span(ranks, rank == 0 ? 2 : 1), After(std::chrono::seconds(20)));
    EXPECT_EQ(group.status().code(), Code::kMismatch);
    EXPECT_TRUE(group.status().message().find("0 1") != std::string::npos);
  });
}

TEST(Engine, a_slow_group_does_not_delay_a_disjoint_one) {
  std::atomic<bool> high_is_done{false};
  TestJob(4).Run([&](Engine& engine, int rank) {
    const int low[] = {0, 1}, high[] = {2, 3};
    Result<GroupId> a = engine.AddGroup(low, After(std::chrono::seconds(20)));
    Result<GroupId> b = engine.AddGroup(high, After(std::chrono::seconds(20)));
    ASSERT_OK(b);
    std::vector<float> input = {1};
    Request request = MakeRequest("x", Kind::kAllreduce, input);
    request.signature.group = rank < 2 ? *a : *b;
    if (rank == 1) {  // holds the low group up until the high one has finished
      const Deadline deadline = After(std::chrono::seconds(20));
      while (!high_is_done && std::chrono::steady_clock::now() < deadline)
        std::this_thread::yield();
      EXPECT_TRUE(high_is_done.load());
    }
    EXPECT_EQ(RunOne<float>(engine, std::move(request)), std::vector<float>{2});
    if (rank >= 2) high_is_done = true;
  });
}

TEST(Engine, votes_are_ored_by_the_negotiation_and_move_no_data) {
  for (int size : kSizes) {
    TestJob(size).Run([&](Engine& engine, int rank) {
      const int64_t high = int64_t{1} << 62;
      for (int64_t step = 0; step < 5; ++step) {
        std::vector<int64_t> vote = {rank == size - 1 ? (step % 2) * high + step : 0};
        const auto all = RunOne<int64_t>(engine, MakeRequest("vote", Kind::kVote, vote));
        EXPECT_EQ(all, std::vector<int64_t>{(step % 2) * high + step}) << size;
      }
      EXPECT_TRUE(engine.StatisticsJson().find("\"buckets\":0") != std::string::npos);
    });
  }
}

TEST(Engine, votes_of_a_group_stay_in_it_and_a_joined_rank_votes_zero) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    const int pair[] = {0, 2};
    Result<GroupId> group = engine.AddGroup(pair, After(std::chrono::seconds(20)));
    ASSERT_OK(group);
    std::vector<int64_t> vote = {int64_t{1} << rank};
    if (rank != 1) {
      Request request = MakeRequest("vote", Kind::kVote, vote);
      request.signature.group = *group;
      EXPECT_EQ(RunOne<int64_t>(engine, std::move(request)), std::vector<int64_t>{5});
      EXPECT_EQ(RunOne<int64_t>(engine, MakeRequest("all", Kind::kVote, vote)),
                std::vector<int64_t>{5});
    }
    std::vector<int32_t> none;
    (void)RunOne<int32_t>(engine, MakeRequest("join", Kind::kJoin, none));
  });
}

TEST(Engine, a_vote_is_one_number_that_is_not_negative) {
  TestJob(1).Run([&](Engine& engine, int) {
    std::vector<int64_t> two = {1, 2};
    Request request = MakeRequest("vote", Kind::kVote, two);
    Handle handle;
    EXPECT_EQ(engine.Submit({&request, 1}, {&handle, 1}).code(), Code::kInvalidArgument);
    std::vector<int64_t> negative = {-1};
    request = MakeRequest("vote", Kind::kVote, negative);
    const Status below = engine.Submit({&request, 1}, {&handle, 1});
    EXPECT_TRUE(below.message().find("the vote is -1") != std::string::npos) << below;
  });
}

}  // namespace
}  // namespace rabit

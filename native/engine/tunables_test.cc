// Limits that change under traffic: every rank cuts alike at every moment, and no result changes.
#include <random>

#include "testing/engine_job.h"

namespace rabit {
namespace {

using testing::MakeRequest;
using testing::RunOne;
using testing::TestJob;

// What is in force, out of the statistics.
int64_t InForce(const Engine& engine, const std::string& key) {
  const std::string json = engine.StatisticsJson();
  const size_t section = json.find("\"tunables\":{");
  if (section == std::string::npos) return -2;
  const size_t at = json.find("\"" + key + "\":", section);
  return at == std::string::npos ? -2 : std::atoll(json.c_str() + at + key.size() + 3);
}

TEST(Tunables, what_rank_0_proposes_is_in_force_on_every_rank) {
  testing::JobOptions options;
  options.engine.lanes = 3;
  TestJob(3, options).Run([&](Engine& engine, int rank) {
    if (rank == 0) {
      EXPECT_OK(engine.Propose({.partition_bytes = 4096, .lanes = 2}));
      EXPECT_OK(engine.Propose({.credit_bytes = 1 << 16}));
    }
    for (const char* name : {"a", "b"}) {
      std::vector<int32_t> none;
      (void)RunOne<int32_t>(engine, MakeRequest(name, Kind::kBarrier, none));
    }
    EXPECT_EQ(InForce(engine, "partition_bytes"), 4096);
    EXPECT_EQ(InForce(engine, "credit_bytes"), 1 << 16);
    EXPECT_EQ(InForce(engine, "fusion_bytes"), 64 << 20);
    EXPECT_EQ(InForce(engine, "lanes"), 2);
  });
}

TEST(Tunables, a_reset_brings_back_what_the_job_began_with) {
  testing::JobOptions options;
  options.engine.lanes = 3;
  TestJob(3, options).Run([&](Engine& engine, int rank) {
    const auto barrier = [&](const char* name) {
      std::vector<int32_t> none;
      (void)RunOne<int32_t>(engine, MakeRequest(name, Kind::kBarrier, none));
    };
    if (rank == 0) {
      EXPECT_OK(engine.Propose({4096, 0, 1 << 16, 2}));
    }
    barrier("a");
    barrier("b");
    EXPECT_EQ(InForce(engine, "lanes"), 2);
    barrier("c");
    if (rank == 0) {
      EXPECT_OK(engine.ResetTunables());
    } else {
      EXPECT_EQ(engine.ResetTunables().code(), Code::kInvalidArgument);
    }
    barrier("d");
    barrier("e");
    EXPECT_EQ(InForce(engine, "partition_bytes"), 4 << 20);
    EXPECT_EQ(InForce(engine, "fusion_bytes"), 64 << 20);
    EXPECT_EQ(InForce(engine, "credit_bytes"), 0);
    EXPECT_EQ(InForce(engine, "lanes"), 3);
  });
}

TEST(Tunables, only_rank_0_proposes_and_only_what_can_be) {
  testing::JobOptions options;
  options.engine.lanes = 2;
  TestJob(2, options).Run([&](Engine& engine, int rank) {
    EXPECT_EQ(engine.Propose({.lanes = rank == 0 ? 3 : 1}).code(), Code::kInvalidArgument);
    EXPECT_EQ(engine.Propose({.partition_bytes = 0}).code(), Code::kInvalidArgument);
    EXPECT_EQ(InForce(engine, "changes"), 0);
  });
}

// Each rank submits in an order of its own, with many operations in flight, while rank 0 changes
// everything at random moments.
TEST(Tunables, results_stay_equal_while_they_change_under_traffic) {
  constexpr int kRanks = 3;
  constexpr int kTensors = 40;
  testing::JobOptions options;
  options.engine.lanes = 4;
  options.limits.partition_bytes = 64;
  TestJob(kRanks, options).Run([&](Engine& engine, int rank) {
    std::mt19937 order(static_cast<uint32_t>(rank) + 1);
    std::mt19937 knobs(7);
    for (int round = 0; round < 15; ++round) {
      std::vector<std::vector<int32_t>> inputs(kTensors);
      std::vector<Handle> handles(kTensors);
      std::vector<int> sequence(kTensors);
      for (int i = 0; i < kTensors; ++i) sequence[static_cast<size_t>(i)] = i;
      std::shuffle(sequence.begin(), sequence.end(), order);
      for (int i : sequence) {
        auto& input = inputs[static_cast<size_t>(i)];
        input.resize(static_cast<size_t>(i * 37 % 500));
        for (size_t j = 0; j < input.size(); ++j)
          input[j] = (rank + 1) * (i + static_cast<int>(j)) + round;
        Request request = MakeRequest("tensor." + std::to_string(i), Kind::kAllreduce, input);
        request.signature.priority = i % 7;
        EXPECT_OK(engine.Submit({&request, 1}, {&handles[static_cast<size_t>(i)], 1}));
        if (rank != 0 || knobs() % 4 != 0) continue;
        const int64_t credit = knobs() % 3 == 0 ? 0 : static_cast<int64_t>(knobs() % 3000 + 1);
        EXPECT_OK(engine.Propose({static_cast<int64_t>(knobs() % 900 + 1),
                                  static_cast<int64_t>(knobs() % 4000), credit,
                                  static_cast<int32_t>(knobs() % 4 + 1)}));
      }
      for (int i = 0; i < kTensors; ++i) {
        const Handle handle = handles[static_cast<size_t>(i)];
        ASSERT_OK(engine.Wait(handle, After(std::chrono::seconds(20))));
        const auto output = engine.Output(handle);
        ASSERT_OK(output);
        const auto* values = static_cast<const int32_t*>(output->view.data);
        for (int j = 0; j < static_cast<int>(output->view.count); ++j)
          ASSERT_EQ(values[j], 6 * (i + j) + 3 * round);
        engine.Release(handle);
      }
    }
    std::vector<int32_t> none;
    (void)RunOne<int32_t>(engine, MakeRequest("end", Kind::kBarrier, none));
    EXPECT_GT(InForce(engine, "changes"), 5);
  });
}

}  // namespace
}  // namespace rabit

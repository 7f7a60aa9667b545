// Steps that repeat the last one use its schedule again; results must not depend on it.
#include <algorithm>
#include <random>

#include "testing/engine_job.h"

namespace rabit {
namespace {

using testing::MakeRequest;
using testing::RunOne;
using testing::TestJob;

constexpr int kRanks = 3;
constexpr int kTensors = 30;

struct Tensor {
  int number = 0;
  int64_t count = 0;
  int32_t priority = 0;
};

std::vector<Tensor> Tensors() {
  std::vector<Tensor> tensors;
  for (int i = 0; i < kTensors; ++i) tensors.push_back({i, i * 37 % 200, i % 7});
  return tensors;
}

// Submits all in one call, waits, and looks at every element.
void RunStep(Engine& engine, int rank, int step, const std::vector<Tensor>& tensors) {
  std::vector<std::vector<int32_t>> inputs(tensors.size());
  std::vector<Request> requests;
  for (size_t i = 0; i < tensors.size(); ++i) {
    inputs[i].assign(static_cast<size_t>(tensors[i].count), (rank + 1) * tensors[i].number + step);
    requests.push_back(
        MakeRequest("tensor." + std::to_string(tensors[i].number), Kind::kAllreduce, inputs[i]));
    requests.back().signature.priority = tensors[i].priority;
  }
  std::vector<Handle> handles(requests.size());
  ASSERT_OK(engine.Submit(requests, handles));
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_OK(engine.Wait(handles[i], After(std::chrono::seconds(20))));
    const auto output = engine.Output(handles[i]);
    ASSERT_OK(output);
    ASSERT_EQ(output->view.count, tensors[i].count);
    const auto* values = static_cast<const int32_t*>(output->view.data);
    for (int64_t j = 0; j < output->view.count; ++j)
      ASSERT_EQ(values[j], 6 * tensors[i].number + kRanks * step) << "step " << step;
    engine.Release(handles[i]);
  }
}

// Half of the steps differ from the usual one, each in something else, and the limits change under
// them.  The ranks submit in orders of their own.
void RunRandomSteps(const testing::JobOptions& options) {
  TestJob(kRanks, options).Run([&](Engine& engine, int rank) {
    std::mt19937 common(11);
    std::mt19937 own(static_cast<uint32_t>(rank) + 1);
    for (int step = 0; step < 60; ++step) {
      std::vector<Tensor> tensors = Tensors();
      const size_t which = common() % tensors.size();
      switch (common() % 10) {
        case 0:
          tensors.erase(tensors.begin() + static_cast<int>(which));
          break;
        case 1:
          tensors[which].count = static_cast<int64_t>(common() % 300);
          break;
        case 2:
          tensors[which].priority = 50;
          break;
        case 3:
          tensors.push_back({kTensors + static_cast<int>(common() % 9), 5, 1});
          break;
        case 4:
          std::shuffle(tensors.begin(), tensors.end(), own);
          break;
        default:
          break;  // as ever
      }
      const Tunables tunables{
          static_cast<int64_t>(common() % 900 + 1), static_cast<int64_t>(common() % 4000),
          static_cast<int64_t>(common() % 3000), static_cast<int32_t>(common() % 2 + 1)};
      if (rank == 0 && step % 7 == 0) {
        EXPECT_OK(engine.Propose(tunables));
      }
      RunStep(engine, rank, step, tensors);
    }
  });
}

TEST(RepeatedStep, random_deviations_change_no_result) {
  testing::JobOptions options;
  options.engine.lanes = 2;
  RunRandomSteps(options);
}

// With little credit a step begins while parts of the one before are held back.
TEST(RepeatedStep, random_deviations_change_no_result_where_credit_is_short) {
  testing::JobOptions options;
  options.engine.lanes = 2;
  options.is_fifo = true;
  options.limits.partition_bytes = 64;
  options.limits.credit_bytes = 256;
  RunRandomSteps(options);
}

// A rank that has joined takes part in a repeated step without requests of its own.
TEST(RepeatedStep, a_step_in_which_a_rank_has_joined_is_not_repeated_for_it) {
  TestJob(kRanks).Run([](Engine& engine, int rank) {
    for (int step = 0; step < 3; ++step) RunStep(engine, rank, step, Tensors());
    std::vector<int32_t> none;
    if (rank == 2) {
      (void)RunOne<int32_t>(engine, MakeRequest("join", Kind::kJoin, none));
    } else {
      std::vector<int32_t> input(4, rank + 1);
      EXPECT_EQ(RunOne<int32_t>(engine, MakeRequest("tensor.1", Kind::kAllreduce, input)),
                (std::vector<int32_t>(4, 3)));
      (void)RunOne<int32_t>(engine, MakeRequest("join", Kind::kJoin, none));
    }
    for (int step = 3; step < 6; ++step) RunStep(engine, rank, step, Tensors());
  });
}

// Names that never return are forgotten, those in flight are not.
TEST(RepeatedStep, names_that_do_not_return_make_room) {
  TestJob(1).Run([](Engine& engine, int) {
    std::vector<int32_t> input(1, 7);
    Request kept = MakeRequest("kept", Kind::kAllreduce, input);
    for (int step = 0; step < 400; ++step) {
      std::vector<std::vector<int32_t>> inputs(100, input);
      std::vector<Request> requests;
      for (int i = 0; i < 100; ++i) {
        requests.push_back(MakeRequest(std::to_string(100 * step + i), Kind::kAllreduce,
                                       inputs[static_cast<size_t>(i)]));
      }
      std::vector<Handle> handles(requests.size());
      ASSERT_OK(engine.Submit(requests, handles));
      for (const Handle each : handles) {
        ASSERT_OK(engine.Wait(each, After(std::chrono::seconds(20))));
        const Result<HandleOutput> output = engine.Output(each);
        ASSERT_OK(output);
        EXPECT_EQ(*static_cast<const int32_t*>(output->view.data), 7);
        engine.Release(each);
      }
    }
    Handle handle;
    EXPECT_OK(engine.Submit({&kept, 1}, {&handle, 1}));
    EXPECT_OK(engine.Wait(handle, After(std::chrono::seconds(20))));
  });
}

}  // namespace
}  // namespace rabit

#include "engine/plan_calls.h"

#include <chrono>
#include <string>
#include <vector>

#include "testing/engine_job.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::MakeRequest;
using testing::RunOne;
using testing::Soon;
using testing::SubmitOne;
using testing::TestJob;

const std::string kPair = "size 2\nallreduce 0 1 up -1 0 down -1 0\n";

TEST(PlanCalls, a_plan_is_in_force_on_all_ranks_until_it_is_taken_back) {
  TestJob(2).Run([](Engine& engine, int) {
    EXPECT_OK(engine.SetPlan(kWorld, kPair, Soon()));

    const Result<Group> planned = engine.GetGroup(kWorld);
    ASSERT_OK(planned);
    ASSERT_TRUE(planned->plan != nullptr);
    EXPECT_TRUE(planned->plan->Has(Kind::kAllreduce, 0));
    EXPECT_FALSE(planned->plan->Has(Kind::kBroadcast, 0));

    EXPECT_OK(engine.SetPlan(kWorld, "", Soon()));
    EXPECT_TRUE(engine.GetGroup(kWorld)->plan == nullptr);
  });
}

TEST(PlanCalls, ranks_with_different_plans_have_an_error_and_go_on) {
  TestJob(2).Run([](Engine& engine, int rank) {
    const Status status =
        engine.SetPlan(kWorld, rank == 0 ? kPair : kPair + "bytes_min 5\n", Soon());

    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_EQ(status.culprit(), 1 - rank);
    EXPECT_TRUE(status.message().find("has another plan than this rank") != std::string::npos);
    EXPECT_TRUE(engine.GetGroup(kWorld)->plan == nullptr);
    std::vector<float> input = {1};
    EXPECT_EQ(RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, input)),
              std::vector<float>{2.f});
  });
}

TEST(PlanCalls, a_plan_of_another_size_is_refused_on_all_ranks) {
  TestJob(3).Run([](Engine& engine, int) {
    const Status status = engine.SetPlan(kWorld, kPair, Soon());

    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(status.message().find("it is of 2 ranks, and the group has 3") !=
                std::string::npos);
  });
}

// What was sent before and what follows each have one route on all ranks.
TEST(PlanCalls, after_a_timeout_the_group_takes_no_plan_any_more) {
  TestJob(2).Run([](Engine& engine, int rank) {
    if (rank == 0) {
      const Status late = engine.SetPlan(kWorld, kPair, After(std::chrono::milliseconds(20)));
      EXPECT_EQ(late.code(), Code::kTimedOut);

      const Status again = engine.SetPlan(kWorld, kPair, Soon());

      EXPECT_EQ(again.code(), Code::kInvalidArgument);
      EXPECT_TRUE(again.message().find("start the job again") != std::string::npos);
    }
    std::vector<float> input = {1};
    EXPECT_EQ(RunOne<float>(engine, MakeRequest("x", Kind::kAllreduce, input)),
              std::vector<float>{2.f});
  });
}

TEST(PlanCalls, plans_change_while_operations_are_in_flight) {
  TestJob(3).Run([](Engine& engine, int rank) {
    std::vector<std::vector<float>> inputs(40, std::vector<float>(1000, 1.f + rank));
    std::vector<Handle> handles;
    for (size_t i = 0; i < inputs.size(); ++i) {
      handles.push_back(SubmitOne(
          engine, MakeRequest("x" + std::to_string(i), Kind::kAllreduce, inputs[i])));
      if (i % 8 == static_cast<size_t>(rank)) {
        EXPECT_OK(engine.SetPlan(kWorld, i < 20 ? "size 3\nallreduce 1 1 up 1 -1 0 down 2 -1 1\n" : "",
                                 Soon()));
      }
    }
    for (const Handle handle : handles) {
      EXPECT_OK(engine.Wait(handle, Soon()));
      const Result<HandleOutput> output = engine.Output(handle);
      ASSERT_OK(output);
      EXPECT_EQ(static_cast<const float*>(output->view.data)[999], 6.f);
      engine.Release(handle);
    }
  });
}

}  // namespace
}  // namespace rabit

// Groups that ranks add and remove, some of them late; ranks are threads.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/wake_signal.h"
#include "engine/engine.h"
#include "testing/engine_job.h"
#include "testing/forwarding_backend.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::Has;
using testing::JobOptions;
using testing::MakeRequest;
using testing::RunOne;
using testing::RunRanks;
using testing::Soon;
using testing::TestJob;

const std::string kPairPlan = "size 2\nallreduce 0 1 up -1 0 down -1 0\n";

Deadline Shortly() { return After(std::chrono::milliseconds(20)); }

std::vector<std::unique_ptr<Engine>> StartAll(TestJob& job) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < job.size(); ++rank) engines.push_back(job.Start(rank));
  return engines;
}

// A rank whose deadline passes has still been counted by the others, and goes on.
TEST(GroupCalls, a_group_that_is_added_late_keeps_its_number_on_every_rank) {
  TestJob job(2);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 2; ++rank) engines.push_back(job.Start(rank));
  const std::vector<int> both = {0, 1}, alone = {0};

  const Status early = engines[0]->AddGroup(both, After(std::chrono::milliseconds(20))).status();
  EXPECT_EQ(early.code(), Code::kTimedOut);
  EXPECT_TRUE(Has(early.message(), "rank 0: add_group: not every rank")) << early.message();
  Result<GroupId> on_0 = kWorld, on_1 = kWorld;
  RunRanks(2, [&](int rank) {
    (rank == 0 ? on_0 : on_1) = engines[static_cast<size_t>(rank)]->AddGroup(both, Soon());
  });

  ASSERT_OK(on_0.status());
  ASSERT_OK(on_1.status());
  EXPECT_EQ(*on_0, *on_1);
  RunRanks(2, [&](int rank) {
    const Result<GroupId> next = engines[static_cast<size_t>(rank)]->AddGroup(alone, Soon());
    ASSERT_OK(next.status());
    EXPECT_EQ(*next, *on_1 + 1);
    std::vector<float> values = {1.0f};
    Request request = MakeRequest("x", Kind::kAllreduce, values);
    request.signature.group = *on_1;
    EXPECT_EQ(RunOne<float>(*engines[static_cast<size_t>(rank)], std::move(request)),
              std::vector<float>{2.0f});
  });
}

// Takes a group only when its gate is open.
class SlowToTake final : public testing::ForwardingBackend {
 public:
  SlowToTake(std::unique_ptr<Backend> inner, std::atomic<bool>& is_open, WakeSignal& opened)
      : ForwardingBackend(std::move(inner)), is_open_(is_open), opened_(opened) {}
  Status AddGroup(const Group& group) override {
    EXPECT_TRUE(opened_.Wait([this] { return is_open_.load(); }, Soon()));
    return ForwardingBackend::AddGroup(group);
  }

 private:
  std::atomic<bool>& is_open_;
  WakeSignal& opened_;
};

// All ranks have agreed, and this engine has not come to it yet.
TEST(GroupCalls, a_group_that_is_agreed_and_not_yet_taken_keeps_its_number) {
  std::atomic<bool> is_open{false};
  WakeSignal opened;
  JobOptions options;
  options.wrap_backend = [&](int rank, std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
    if (rank != 0) return inner;
    return std::make_unique<SlowToTake>(std::move(inner), is_open, opened);
  };
  TestJob job(2, options);
  const auto engines = StartAll(job);
  const std::vector<int> both = {0, 1}, alone = {0};
  Result<GroupId> on_0 = kWorld, on_1 = kWorld;

  RunRanks(2, [&](int rank) {
    if (rank == 1) {
      on_1 = engines[1]->AddGroup(both, Soon());
      return;
    }
    Status early;
    do {
      early = engines[0]->AddGroup(both, Shortly()).status();
      ASSERT_TRUE(early.code() == Code::kTimedOut);
    } while (!Has(early.message(), "is agreed"));
    is_open.store(true);
    opened.Notify();
    on_0 = engines[0]->AddGroup(both, Soon());
  });

  ASSERT_OK(on_0.status());
  ASSERT_OK(on_1.status());
  EXPECT_EQ(*on_0, *on_1);
  RunRanks(2, [&](int rank) {
    const Result<GroupId> next = engines[static_cast<size_t>(rank)]->AddGroup(alone, Soon());
    ASSERT_OK(next.status());
    EXPECT_EQ(*next, *on_1 + 1);
  });
}

class CannotTake final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  Status AddGroup(const Group& group) override {
    if (group.size() > 1) return ResourceExhausted("no room for a group");
    return ForwardingBackend::AddGroup(group);
  }
};

TEST(GroupCalls, a_group_that_one_rank_cannot_take_fails_on_every_rank) {
  JobOptions options;
  options.wrap_backend = [](int rank, std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
    if (rank != 1) return inner;
    return std::make_unique<CannotTake>(std::move(inner));
  };
  TestJob job(2, options);
  const auto engines = StartAll(job);
  RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    const Status status = engine.AddGroup(std::vector<int>{0, 1}, Soon()).status();
    EXPECT_TRUE(Has(status.message(), rank == 1 ? "no room for a group" : "another rank"))
        << status;
    EXPECT_EQ(engine.GetGroup(1).status().code(), Code::kInvalidArgument);
    const Result<GroupId> next = engine.AddGroup(std::vector<int>{0}, Soon());
    ASSERT_OK(next.status());
    EXPECT_EQ(*next, 2);
  });
}

// A rank whose deadline passes has still been counted by the others.
TEST(GroupCalls, a_group_that_is_removed_late_is_removed_on_every_rank) {
  TestJob job(2);
  const auto engines = StartAll(job);
  std::vector<GroupId> groups(2);
  RunRanks(2, [&](int rank) {
    const Result<GroupId> group =
        engines[static_cast<size_t>(rank)]->AddGroup(std::vector<int>{0, 1}, Soon());
    ASSERT_OK(group.status());
    groups[static_cast<size_t>(rank)] = *group;
  });

  const Status early = engines[0]->RemoveGroup(groups[0], Shortly());
  EXPECT_EQ(early.code(), Code::kTimedOut);
  EXPECT_TRUE(Has(early.message(), "rank 0: remove_group: not every rank has called it yet"))
      << early.message();
  EXPECT_OK(engines[1]->RemoveGroup(groups[1], Soon()));
  EXPECT_OK(engines[0]->RemoveGroup(groups[0], Soon()));

  for (const auto& engine : engines) {
    EXPECT_EQ(engine->GetGroup(groups[0]).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(engine->RemoveGroup(groups[0], Soon()).code(), Code::kInvalidArgument);
  }
}

void ExpectNamesTheJoined(const Status& status) {
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
  EXPECT_EQ(status.culprit(), 0) << status;
  EXPECT_TRUE(Has(status.message(), "rank 0 has called join")) << status;
}

void Join(Engine& engine) {
  std::vector<int32_t> none;
  (void)RunOne<int32_t>(engine, MakeRequest("join", Kind::kJoin, none));
}

// Without its list the others would number groups that it does not know.
TEST(GroupCalls, groups_do_not_change_while_a_rank_has_joined) {
  TestJob(3).Run([](Engine& engine, int rank) {
    const Result<GroupId> group = engine.AddGroup(std::vector<int>{0, 1, 2}, Soon());
    ASSERT_OK(group.status());
    if (rank != 0) {
      ExpectNamesTheJoined(engine.AddGroup(std::vector<int>{1, 2}, Soon()).status());
      ExpectNamesTheJoined(engine.RemoveGroup(*group, Soon()));
      ExpectNamesTheJoined(engine.SetPlan(*group, "", Soon()));
    }
    Join(engine);

    const Result<GroupId> next = engine.AddGroup(std::vector<int>{0, 1}, Soon());
    ASSERT_OK(next.status());
    EXPECT_EQ(*next, *group + 1);
    if (rank < 2) {
      EXPECT_OK(engine.SetPlan(*next, kPairPlan, Soon()));
    }
    EXPECT_OK(engine.RemoveGroup(*group, Soon()));
    EXPECT_OK(engine.RemoveGroup(*next, Soon()));
  });
}

// All have agreed on a group that rank 0 gave up waiting for, and it has joined without taking it.
TEST(GroupCalls, a_group_that_a_joined_rank_has_not_taken_is_taken_when_it_is_back) {
  TestJob job(2);
  const auto engines = StartAll(job);
  const std::vector<int> both = {0, 1}, alone = {0};
  EXPECT_EQ(engines[0]->AddGroup(both, Shortly()).status().code(), Code::kTimedOut);
  RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    if (rank == 1) ExpectNamesTheJoined(engine.AddGroup(both, Soon()).status());
    Join(engine);
  });

  RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    const Result<GroupId> group = engine.AddGroup(both, Soon());
    ASSERT_OK(group.status());
    const Result<GroupId> next = engine.AddGroup(alone, Soon());
    ASSERT_OK(next.status());
    EXPECT_EQ(*next, *group + 1);
    std::vector<float> values = {1.0f};
    Request request = MakeRequest("x", Kind::kAllreduce, values);
    request.signature.group = *group;
    EXPECT_EQ(RunOne<float>(engine, std::move(request)), std::vector<float>{2.0f});
  });
}

// Rank 2 votes as often as it takes, whether the threads of rank 1 share a vote or not.
TEST(GroupCalls, a_removal_that_fails_fails_for_each_thread_that_waits_for_it) {
  std::atomic<int> returned{0};
  std::atomic<bool> is_open{true}, is_known{false};
  TestJob(3).Run([&](Engine& engine, int rank) {
    const Result<GroupId> group = engine.AddGroup(std::vector<int>{0, 1, 2}, Soon());
    ASSERT_OK(group.status());
    if (rank == 1) {
      RunRanks(2, [&](int) {
        ExpectNamesTheJoined(engine.RemoveGroup(*group, Soon()));
        ++returned;
      });
      while (!is_known.load()) std::this_thread::yield();
    }
    if (rank == 2) {
      while (returned.load() < 2) {
        const Status status = engine.RemoveGroup(*group, Shortly());
        is_open.store(status.code() == Code::kTimedOut);
        if (!is_open.load()) ExpectNamesTheJoined(status);
      }
      is_known.store(true);
    }
    if (rank != 0 && is_open.load()) ExpectNamesTheJoined(engine.RemoveGroup(*group, Soon()));
    Join(engine);
    EXPECT_OK(engine.RemoveGroup(*group, Soon()));
  });
}

// Two threads on each rank, in opposite orders: neither waits for what the other has begun.
TEST(GroupCalls, threads_that_remove_different_groups_do_not_wait_for_each_other) {
  TestJob job(2);
  const auto engines = StartAll(job);
  std::vector<GroupId> groups;
  for (int i = 0; i < 2; ++i) {
    std::vector<GroupId> added(2);
    RunRanks(2, [&](int rank) {
      const Result<GroupId> group =
          engines[static_cast<size_t>(rank)]->AddGroup(std::vector<int>{0, 1}, Soon());
      ASSERT_OK(group.status());
      added[static_cast<size_t>(rank)] = *group;
    });
    groups.push_back(added[0]);
  }
  const auto has_submitted = [&](size_t rank) {
    return Has(engines[rank]->StatisticsJson(), "\"open\":1,");
  };
  std::atomic<int> waiting{0};
  RunRanks(4, [&](int thread) {
    const auto rank = static_cast<size_t>(thread % 2);
    if (thread < 2) {
      EXPECT_OK(engines[rank]->RemoveGroup(groups[rank], Soon()));
      return;
    }
    while (!has_submitted(rank)) std::this_thread::yield();
    ++waiting;
    while (waiting.load() < 2) std::this_thread::yield();
    EXPECT_OK(engines[rank]->RemoveGroup(groups[1 - rank], Soon()));
  });
}

}  // namespace
}  // namespace rabit

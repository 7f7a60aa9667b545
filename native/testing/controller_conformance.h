// What every Controller must do.  RABIT_CONTROLLER_SUITE(Name, Fixture) registers the cases for one
// implementation.  A Fixture is made from a size and ControllerOptions and offers
//   std::unique_ptr<Controller> Connect(int rank)  called by each rank's own thread;
//   void Kill(int rank)                            the others then see that rank die.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "control/channel_controller.h"
#include "testing/run_ranks.h"
#include "testing/test.h"

namespace rabit::testing {

inline Deadline ControllerSoon() { return After(std::chrono::seconds(20)); }

inline Announcement::Entry FloatEntry(std::string name, std::vector<int64_t> shape) {
  Announcement::Entry entry;
  entry.name = std::move(name);
  entry.signature.op = ReduceOp::kSum;
  entry.signature.shape = std::move(shape);
  return entry;
}

// The next agreement, past wake-ups; a failure and an empty agreement if there is none in time.
inline Agreement NextAgreement(Controller& controller) {
  const Deadline deadline = ControllerSoon();
  while (std::chrono::steady_clock::now() < deadline) {
    auto next = controller.Await(deadline);
    if (!next.ok()) {
      ADD_FAILURE() << next.status();
      return {};
    }
    if (*next) return std::move(**next);
  }
  ADD_FAILURE() << "no agreement in time";
  return {};
}

// The failure that Await ends with.
inline Status NextFailure(Controller& controller) {
  const Deadline deadline = ControllerSoon();
  while (std::chrono::steady_clock::now() < deadline) {
    auto next = controller.Await(deadline);
    if (!next.ok()) return next.status();
  }
  return Internal("no failure in time");
}

inline void AnnounceStop(Controller& controller) {
  Announcement stop;
  stop.wants_stop = true;
  EXPECT_OK(controller.Announce(stop));
  while (!CurrentTestFailed() && !NextAgreement(controller).stop) {
  }
}

// Agreements until `count` tensors are ready or rejected; with a leading '!' where rejected.
inline std::vector<std::string> NextOutcomes(Controller& controller, size_t count) {
  std::vector<std::string> outcomes;
  while (outcomes.size() < count && !CurrentTestFailed()) {
    const Agreement agreement = NextAgreement(controller);
    for (const ReadyTensor& tensor : agreement.ready) outcomes.push_back(tensor.name);
    for (const Rejection& rejected : agreement.rejected) outcomes.push_back("!" + rejected.name);
  }
  return outcomes;
}

template <class Fixture>
void RunControllers(int size, const ControllerOptions& options,
                    const std::function<void(int, Controller&, Fixture&)>& body) {
  Fixture fixture(size, options);
  RunRanks(size, [&](int rank) {
    const std::unique_ptr<Controller> controller = fixture.Connect(rank);
    body(rank, *controller, fixture);
  });
}

// Every rank announces the same tensors in its own order and batches; all see one order.
template <class Fixture>
void ControllerAgreesOnOneOrder() {
  constexpr int kTensors = 40;
  for (int size = 1; size <= 5; ++size) {
    std::vector<std::vector<std::string>> seen(static_cast<size_t>(size));
    RunControllers<Fixture>(
        size, {.cache_capacity = 16}, [&](int rank, Controller& mine, Fixture&) {
          std::mt19937 random(static_cast<uint32_t>(rank * 100 + size));
          std::vector<int> order;
          for (int i = 0; i < kTensors; ++i) order.push_back(i);
          for (int step = 0; step < 5; ++step) {
            std::shuffle(order.begin(), order.end(), random);
            for (size_t i = 0; i < order.size();) {
              Announcement announcement;
              for (size_t n = random() % 9 + 1; n > 0 && i < order.size(); --n, ++i)
                announcement.ready.push_back(
                    FloatEntry("t" + std::to_string(order[i]), {order[i], 2}));
              EXPECT_OK(mine.Announce(announcement));
            }
            std::vector<std::string> ready = NextOutcomes(mine, kTensors);
            auto& all = seen[static_cast<size_t>(rank)];
            all.insert(all.end(), ready.begin(), ready.end());
          }
          AnnounceStop(mine);
        });
    for (const auto& each : seen) {
      EXPECT_EQ(each.size(), size_t{5 * kTensors}) << size;
      EXPECT_TRUE(each == seen[0]) << size;
    }
  }
}

template <class Fixture>
void ControllerRejectsAMismatchOnEveryRank() {
  RunControllers<Fixture>(3, {}, [](int rank, Controller& mine, Fixture&) {
    for (int step = 0; step < 3; ++step) {
      Announcement announcement;
      announcement.ready.push_back(FloatEntry("bad", {4, step == 1 && rank == 2 ? 3 : 7}));
      announcement.ready.push_back(FloatEntry("good", {5}));
      EXPECT_OK(mine.Announce(announcement));
      std::vector<std::string> outcomes = NextOutcomes(mine, 2);
      std::sort(outcomes.begin(), outcomes.end());
      const std::vector<std::string> expected = {step == 1 ? "!bad" : "bad", "good"};
      EXPECT_TRUE(outcomes == expected) << rank << step;
    }
    AnnounceStop(mine);
  });
}

template <class Fixture>
void ControllerNamesTheDeadRankOnEverySurvivor() {
  for (int victim = 0; victim < 3; ++victim) {
    std::atomic<int> agreed{0};
    RunControllers<Fixture>(3, {}, [&](int rank, Controller& mine, Fixture& fixture) {
      Announcement announcement;
      announcement.ready.push_back(FloatEntry("a", {1}));
      EXPECT_OK(mine.Announce(announcement));
      NextOutcomes(mine, 1);
      ++agreed;
      if (rank == victim) {
        while (agreed < 3 && !CurrentTestFailed()) std::this_thread::yield();
        return fixture.Kill(rank);
      }
      const Status why = NextFailure(mine);
      EXPECT_EQ(why.code(), Code::kPeerLost) << rank << why;
      EXPECT_EQ(why.culprit(), victim) << rank << why;
      EXPECT_EQ(mine.Await(ControllerSoon()).status().culprit(), victim);
    });
  }
}

template <class Fixture>
void ControllerPassesTheCauseOfAnAbandonOn() {
  for (int speaker = 0; speaker < 3; ++speaker) {
    RunControllers<Fixture>(3, {}, [&](int rank, Controller& mine, Fixture&) {
      if (rank == speaker) mine.Abandon(ResourceExhausted("no memory for a bucket"));
      const Status why = NextFailure(mine);
      EXPECT_EQ(why.code(), Code::kResourceExhausted) << why;
      EXPECT_TRUE(why.message().find("no memory for a bucket") != std::string::npos) << why;
      if (rank != speaker) {
        EXPECT_EQ(why.culprit(), speaker);
      }
    });
  }
}

template <class Fixture>
void ControllerWakesFromAnotherThread() {
  RunControllers<Fixture>(2, {}, [](int, Controller& mine, Fixture&) {
    std::thread waker([&mine] { mine.Wake(); });
    auto woken = mine.Await(ControllerSoon());
    waker.join();
    ASSERT_OK(woken);
    EXPECT_FALSE(woken->has_value());
    AnnounceStop(mine);
  });
}

// Rank 0 looks for stalls every millisecond here; it would take the wake for the time of a look.
template <class Fixture>
void ControllerKeepsAWakeThatComesAtATick() {
  std::atomic<bool> is_woken{false};
  RunControllers<Fixture>(2, {.stall_warning_ms = 1}, [&](int rank, Controller& mine, Fixture&) {
    Announcement announcement;
    announcement.ready.push_back(FloatEntry("a", {1}));
    if (rank == 0) {
      EXPECT_OK(mine.Announce(announcement));
      for (const Deadline due = After(std::chrono::milliseconds(3)); Deadline::clock::now() < due;)
        std::this_thread::yield();
      mine.Wake();
      const Deadline deadline = ControllerSoon();
      auto woken = mine.Await(deadline);
      EXPECT_OK(woken);
      EXPECT_TRUE(Deadline::clock::now() < deadline);
      is_woken = true;
    } else {
      while (!is_woken && !CurrentTestFailed()) std::this_thread::yield();
      EXPECT_OK(mine.Announce(announcement));
    }
    NextOutcomes(mine, 1);
    AnnounceStop(mine);
  });
}

template <class Fixture>
void ControllerRunsGroupsApart() {
  RunControllers<Fixture>(4, {}, [](int rank, Controller& mine, Fixture&) {
    Group low{1, {0, 1}, rank < 2 ? rank : -1};
    Group high{2, {2, 3}, rank < 2 ? -1 : rank - 2};
    mine.AddGroup(low);
    mine.AddGroup(high);
    // No rank names a group before all know it.
    Announcement all_know;
    all_know.ready.push_back(FloatEntry("all know", {1}));
    EXPECT_OK(mine.Announce(all_know));
    NextOutcomes(mine, 1);
    for (int step = 0; step < 4; ++step) {
      Announcement announcement;
      announcement.ready.push_back(FloatEntry("w", {rank < 2 ? 3 : 4}));
      announcement.ready[0].signature.group = rank < 2 ? 1 : 2;
      EXPECT_OK(mine.Announce(announcement));
      // The other group's agreements arrive too; wait for this group's own.
      for (bool is_mine = false; !is_mine && !CurrentTestFailed();) {
        for (const ReadyTensor& tensor : NextAgreement(mine).ready)
          is_mine = is_mine || tensor.signature.group == (rank < 2 ? 1 : 2);
      }
    }
    AnnounceStop(mine);
  });
}

template <class Fixture>
void ControllerReportsAndEndsAStall() {
  const ControllerOptions options{.stall_warning_ms = 20, .stall_abort_ms = 200};
  RunControllers<Fixture>(3, options, [](int rank, Controller& mine, Fixture&) {
    Announcement announcement;
    announcement.ready.push_back(FloatEntry("slow", {8}));
    if (rank != 1) {
      EXPECT_OK(mine.Announce(announcement));
    }
    const Status why = NextFailure(mine);
    EXPECT_EQ(why.code(), Code::kTimedOut) << why;
    EXPECT_TRUE(why.message().find("'slow' (allreduce float32[8]): ready on ranks 0, 2") !=
                std::string::npos)
        << why;
    EXPECT_TRUE(why.message().find("for rank 1") != std::string::npos) << why;
    const std::vector<std::string> waiting = mine.Waiting();
    ASSERT_EQ(waiting.size(), 1u);
    EXPECT_TRUE(waiting[0].find("for rank 1") != std::string::npos) << waiting[0];
  });
}

template <class Fixture>
void ControllerTakesTheSmallestCredit() {
  RunControllers<Fixture>(3, {}, [](int rank, Controller& mine, Fixture&) {
    Announcement announcement;
    announcement.buckets_done = static_cast<uint64_t>(5 + rank);
    announcement.ready.push_back(FloatEntry("a", {1}));
    EXPECT_OK(mine.Announce(announcement));
    for (bool is_ready = false; !is_ready && !CurrentTestFailed();) {
      const Agreement agreement = NextAgreement(mine);
      is_ready = !agreement.ready.empty();
      if (is_ready) {
        EXPECT_EQ(agreement.buckets_done, 5u);
      }
    }
    AnnounceStop(mine);
  });
}

template <class Fixture>
void ControllerBringsAProposalToEveryRankInOneCycle() {
  RunControllers<Fixture>(3, {}, [](int rank, Controller& mine, Fixture&) {
    const Tunables tunables{.fusion_bytes = 77, .lanes = 1};
    Announcement announcement;
    announcement.ready.push_back(FloatEntry("a", {1}));
    if (rank == 0) announcement.tunables = tunables;
    EXPECT_OK(mine.Announce(announcement));
    int proposals = 0;
    for (bool is_ready = false; !is_ready && !CurrentTestFailed();) {
      const Agreement agreement = NextAgreement(mine);
      is_ready = !agreement.ready.empty();
      if (!agreement.tunables) continue;
      ++proposals;
      EXPECT_EQ(agreement.cycle, 1u);
      EXPECT_TRUE(agreement.tunables == tunables);
    }
    EXPECT_EQ(proposals, 1);
    AnnounceStop(mine);
  });
}

template <class Fixture>
int RegisterControllerSuite(const std::string& suite) {
  Register(suite, "agrees_on_one_order_with_1_to_5_ranks", &ControllerAgreesOnOneOrder<Fixture>);
  Register(suite, "rejects_a_mismatch_on_every_rank",
           &ControllerRejectsAMismatchOnEveryRank<Fixture>);
  Register(suite, "names_the_dead_rank_on_every_survivor",
           &ControllerNamesTheDeadRankOnEverySurvivor<Fixture>);
  Register(suite, "passes_the_cause_of_an_abandon_on",
           &ControllerPassesTheCauseOfAnAbandonOn<Fixture>);
  Register(suite, "wakes_from_another_thread", &ControllerWakesFromAnotherThread<Fixture>);
  Register(suite, "keeps_a_wake_that_comes_at_a_tick",
           &ControllerKeepsAWakeThatComesAtATick<Fixture>);
  Register(suite, "runs_groups_apart", &ControllerRunsGroupsApart<Fixture>);
  Register(suite, "reports_and_ends_a_stall", &ControllerReportsAndEndsAStall<Fixture>);
  Register(suite, "takes_the_smallest_credit", &ControllerTakesTheSmallestCredit<Fixture>);
  Register(suite, "brings_a_proposal_to_every_rank_in_one_cycle",
           &ControllerBringsAProposalToEveryRankInOneCycle<Fixture>);
  return 0;
}

#define RABIT_CONTROLLER_SUITE(suite, Fixture)                       \
  [[maybe_unused]] static const int rabit_controller_suite_##suite = \
      ::rabit::testing::RegisterControllerSuite<Fixture>(#suite)

}  // namespace rabit::testing

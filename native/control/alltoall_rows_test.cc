// What the ranks agree on where each has other rows for every other: no more than they must.
#include "control/alltoall_rows.h"

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "control/announcer.h"
#include "control/coordinator.h"
#include "testing/agreed_tensor.h"

namespace rabit {
namespace {

using testing::Agree;
using testing::ControllerJob;
using testing::Hosts;

// As the engine describes it; uneven: the splits stay with the rank.
Signature Rows(int64_t rows, bool is_even) {
  Signature signature;
  signature.kind = Kind::kAlltoall;
  signature.shape = {rows, 2};
  if (!is_even) signature.splits = {rows};
  return signature;
}

Announcement Say(Signature signature) {
  Announcement mine;
  mine.ready.push_back({"moe", std::move(signature)});
  return mine;
}

TEST(AlltoallRows, an_even_alltoall_costs_what_an_allreduce_does) {
  ControllerJob job(64);
  for (int step = 0; step < 3; ++step) {
    job.ForgetTraffic();
    for (int rank = 0; rank < 64; ++rank) job.Announce(rank, Say(Rows(128, true)));
    const ReadyTensor ready = Agree(job);

    EXPECT_TRUE(ready.extents.empty());
    EXPECT_EQ(ready.signature.shape[0], 128);
    if (step == 0) continue;
    EXPECT_LE(job.FromRoot().bytes, 20u);
    EXPECT_LE(job.ToRoot().bytes, 64u * 20u);
  }
}

TEST(AlltoallRows, an_uneven_alltoall_is_said_in_numbers_that_do_not_grow_with_the_ranks) {
  for (const int size : {4, 256}) {
    ControllerJob job(Hosts(size));
    for (int step = 0; step < 3; ++step) {
      job.ForgetTraffic();
      for (int rank = 0; rank < size; ++rank) {
        job.Announce(rank, Say(Rows(1000 * size + 2 * rank, false)));
      }
      const ReadyTensor ready = Agree(job);

      ASSERT_EQ(ready.extents.size(), 1u);
      EXPECT_EQ(ready.extents[0], 1000 * size + size - 1);
      EXPECT_LE(job.FromRoot().bytes, 100u);
      EXPECT_LE(job.ToRoot().bytes, 100u * static_cast<uint64_t>(size));
    }
  }
}

TEST(AlltoallRows, any_rank_that_differs_makes_it_uneven_for_all) {
  ControllerJob job(3);
  for (const int other : {0, 1, 2}) {
    for (int rank = 0; rank < 3; ++rank) {
      job.Announce(rank, Say(rank == other ? Rows(9, true) : Rows(6, true)));
    }
    EXPECT_TRUE(Agree(job).extents == std::vector<int64_t>{7}) << other;
    for (int rank = 0; rank < 3; ++rank) job.Announce(rank, Say(Rows(6, rank != other)));
    EXPECT_TRUE(Agree(job).extents == std::vector<int64_t>{6}) << other;
  }
}

// Known by their number or not, combined by the tree or not: the agreement fits what was said.
TEST(AlltoallRows, follow_what_is_announced_from_step_to_step) {
  std::mt19937 random(11);
  for (const int size : {3, 16, 40}) {
    const RankTree tree = size == 3 ? RankTree::Star(size) : Hosts(size);
    ControllerJob job(tree);
    for (int step = 0; step < 60; ++step) {
      const int64_t rows = size * static_cast<int64_t>(1 + random() % 2);
      const bool is_even = random() % 3 > 0;
      const int odd_one = random() % 3 == 0 ? static_cast<int>(random()) % size : -1;
      int64_t total = 0;
      for (int rank = size - 1; rank >= 0; --rank) {
        const int64_t mine = rank == odd_one ? 3 * rows : rows;
        job.Announce(rank, Say(Rows(mine, is_even)));
        total += mine;
      }
      const ReadyTensor ready = Agree(job);

      if (is_even && odd_one < 0) {
        EXPECT_TRUE(ready.extents.empty()) << step;
        EXPECT_EQ(ready.signature.shape[0], rows) << step;
      } else {
        ASSERT_EQ(ready.extents.size(), 1u) << step;
        EXPECT_EQ(ready.extents[0], (total + size - 1) / size) << step;
      }
    }
  }
}

TEST(AlltoallRows, rows_that_do_not_divide_are_refused_without_splits) {
  ControllerJob job(2);
  job.Announce(0, Say(Rows(5, true)));
  job.Announce(1, Say(Rows(4, true)));
  ASSERT_OK(job.Deliver());

  ASSERT_EQ(job.agreed(1).size(), 1u);
  ASSERT_EQ(job.agreed(1)[0].rejected.size(), 1u);
  EXPECT_TRUE(job.agreed(1)[0].rejected[0].why.message().find("5 rows do not divide") !=
              std::string::npos)
      << job.agreed(1)[0].rejected[0].why;
}

TEST(AlltoallRows, an_agreement_without_rows_is_refused) {
  Announcer announcer(0, 2);
  AgreeMessage message;
  message.cycle = 1;
  Signature scalar = Rows(2, true);
  scalar.shape.clear();
  message.definitions.push_back({{0, {}, {}}, {"moe", kWorld, -1, -1}, scalar});

  const Result<Agreement> applied = announcer.Apply(std::move(message));

  EXPECT_EQ(applied.status().code(), Code::kInternal);
  EXPECT_TRUE(applied.status().message().find("without rows") != std::string::npos);
}

TEST(AlltoallRows, what_is_too_much_for_one_agreement_comes_in_several) {
  constexpr int kRanks = 8;
  constexpr int kTensors = 100;
  Coordinator coordinator({.size = kRanks, .agreement_bytes = 1000});
  std::vector<Announcer> announcers;
  for (int rank = 0; rank < kRanks; ++rank) announcers.emplace_back(rank, kRanks);
  Announcement mine;
  for (int i = 0; i < kTensors; ++i) {
    Announcement::Entry& entry = mine.ready.emplace_back();
    entry.name = "gather" + std::to_string(i);
    entry.signature.kind = Kind::kAllgather;
  }
  for (int step = 0; step < 2; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (Announcement::Entry& entry : mine.ready) entry.signature.shape = {rank == 3 ? 9 : 7};
      Announcer& announcer = announcers[static_cast<size_t>(rank)];
      coordinator.OnAnnounce(rank, announcer.Prepare(mine, 0), 0);
    }
    int told = 0;
    while (const std::optional<AgreeMessage> message = coordinator.TakeAgreement()) {
      int ready = 0;
      for (Announcer& announcer : announcers) {
        const Result<Agreement> agreement = announcer.Apply(AgreeMessage(*message));
        ASSERT_OK(agreement);
        ready = static_cast<int>(agreement->ready.size());
        EXPECT_LE(ready, 12) << "of some 100 bytes each";
        for (int i = 0; i < ready; ++i) {
          EXPECT_EQ(agreement->ready[static_cast<size_t>(i)].name,
                    "gather" + std::to_string(told + i));
        }
      }
      told += ready;
    }
    EXPECT_EQ(told, kTensors);
  }
}

}  // namespace
}  // namespace rabit

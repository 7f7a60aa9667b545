// What the ranks agree on where their rows follow from the sum of all: nothing beside an id.
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/even_rows.h"
#include "control/announcer.h"
#include "testing/agreed_tensor.h"

namespace rabit {
namespace {

using testing::Agree;
using testing::ControllerJob;
using testing::Hosts;

Announcement Gather(int64_t rows, int32_t priority = 0) {
  Announcement mine;
  Announcement::Entry& entry = mine.ready.emplace_back();
  entry.name = "shard";
  entry.signature.kind = Kind::kAllgather;
  entry.signature.shape = {rows, 2};
  entry.signature.priority = priority;
  return mine;
}

TEST(EvenParts, an_even_allgather_costs_what_an_allreduce_does) {
  constexpr int kRanks = 64;
  for (const int64_t rows : {64, 70, 1}) {
    ControllerJob job(kRanks);
    for (int step = 0; step < 3; ++step) {
      job.ForgetTraffic();
      for (int rank = 0; rank < kRanks; ++rank)
        job.Announce(rank, Gather(EvenRows{rows, kRanks}.Of(rank)));
      const ReadyTensor ready = Agree(job);

      EXPECT_TRUE(ready.extents.empty());
      EXPECT_EQ(ready.signature.shape[0], rows);
      EXPECT_EQ(ready.signature.even_parts, kRanks);
      if (step == 0) continue;
      EXPECT_LE(job.FromRoot().bytes, 20u);
      EXPECT_LE(job.ToRoot().bytes, kRanks * 20u);
    }
  }
}

TEST(EvenParts, a_reduce_scatter_has_as_many_parts_as_its_group_has_ranks) {
  ControllerJob job(3);
  for (int rank = 0; rank < 3; ++rank) {
    Announcement mine = Gather(7);
    mine.ready[0].signature.kind = Kind::kReduceScatter;
    job.Announce(rank, mine);
  }
  const ReadyTensor ready = Agree(job);

  EXPECT_EQ(ready.signature.even_parts, 3);
  EXPECT_EQ(ready.signature.shape[0], 7);
}

// Known by its number or not, combined by the tree or not, another priority on one rank or not:
// what is agreed are the rows that were said.
TEST(EvenParts, rows_of_an_allgather_are_those_announced_from_step_to_step) {
  std::mt19937 random(12);
  for (const int size : {2, 3, 16, 40}) {
    const RankTree tree = size < 4 ? RankTree::Star(size) : Hosts(size);
    ControllerJob job(tree);
    for (int step = 0; step < 120; ++step) {
      const auto sum = static_cast<int64_t>(random() % 3) + 2 * size;
      const auto priority = static_cast<int32_t>(random() % 2);
      std::vector<int64_t> rows;
      for (int rank = 0; rank < size; ++rank) rows.push_back(EvenRows{sum, size}.Of(rank));
      if (random() % 3 == 0) rows[random() % rows.size()] += static_cast<int64_t>(random() % 3);
      for (int rank = size - 1; rank >= 0; --rank) {
        const bool is_odd = rank == 0 && random() % 4 == 0;
        job.Announce(rank,
                     Gather(rows[static_cast<size_t>(rank)], is_odd ? 1 - priority : priority));
      }
      const ReadyTensor ready = Agree(job);

      const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
      std::vector<int64_t> even;
      for (int rank = 0; rank < size; ++rank) even.push_back(EvenRows{total, size}.Of(rank));
      if (rows == even) {
        EXPECT_TRUE(ready.extents.empty()) << step;
        EXPECT_EQ(ready.signature.shape[0], total) << step;
        EXPECT_EQ(ready.signature.even_parts, size) << step;
      } else {
        EXPECT_TRUE(ready.extents == rows) << step;
        EXPECT_EQ(ready.signature.even_parts, 0) << step;
      }
    }
  }
}

TEST(EvenParts, an_agreement_on_other_parts_than_the_group_has_ranks_is_refused) {
  for (const int32_t parts : {0, 2, 4}) {
    Announcer announcer(0, 3);
    AgreeMessage message;
    message.cycle = 1;
    Signature signature = Gather(6).ready[0].signature;
    signature.even_parts = parts;
    message.definitions.push_back({{0, {}, {}}, {"shard", kWorld, -1, -1}, signature});

    const Result<Agreement> applied = announcer.Apply(std::move(message));

    EXPECT_EQ(applied.status().code(), Code::kInternal);
    EXPECT_TRUE(applied.status().message().find("'shard'") != std::string::npos);
  }
}

}  // namespace
}  // namespace rabit

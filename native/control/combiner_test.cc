#include "control/combiner.h"

#include <random>
#include <string>
#include <vector>

#include "control/coordinator.h"
#include "testing/agreed_tensor.h"
#include "testing/sanitizer.h"

namespace rabit {
namespace {

using testing::ControllerJob;
using testing::Hosts;

constexpr int kFanOut = 4;

Announcement Step(int tensors, Kind kind = Kind::kAllreduce) {
  Announcement mine;
  for (int i = 0; i < tensors; ++i) {
    Announcement::Entry entry;
    entry.name = "layer" + std::to_string(i) + ".weight";
    entry.signature.kind = kind;
    entry.signature.shape = {i + 1, 3};
    mine.ready.push_back(std::move(entry));
  }
  return mine;
}

// Everything each rank was told; all alike.
size_t CountReady(ControllerJob& job) {
  size_t first = 0;
  for (int rank = 0; rank < job.size(); ++rank) {
    size_t ready = 0;
    for (const Agreement& agreement : job.agreed(rank)) ready += agreement.ready.size();
    job.agreed(rank).clear();
    if (rank == 0) first = ready;
    EXPECT_EQ(ready, first) << rank;
  }
  return first;
}

TEST(Combiner, rank_0_hears_one_message_from_each_child) {
  const RankTree tree = Hosts(64);
  ControllerJob job(tree);
  for (const Kind kind : {Kind::kAllreduce, Kind::kAllgather}) {
    for (int step = 0; step < 3; ++step) {
      job.ForgetTraffic();
      for (int rank = 63; rank >= 0; --rank) job.Announce(rank, Step(100, kind));
      ASSERT_OK(job.Deliver());

      EXPECT_EQ(CountReady(job), 100u);
      EXPECT_EQ(job.ToRoot().messages, tree.children(0).size()) << Name(kind) << step;
    }
    if (kind == Kind::kAllreduce) {
      EXPECT_LE(job.ToRoot().bytes, 40u * tree.children(0).size());
    }
  }
}

TEST(Combiner, batches_of_any_size_are_said_once) {
  const RankTree tree = Hosts(32);
  ControllerJob job(tree);
  std::mt19937 random(3);
  for (int step = 0; step < 4; ++step) {
    const Announcement all = Step(60);
    uint64_t sent = 0;
    for (int rank = 0; rank < 32; ++rank) {
      for (size_t at = 0; at < all.ready.size();) {
        Announcement some;
        for (size_t n = random() % 20 + 1; n > 0 && at < all.ready.size(); --n, ++at)
          some.ready.push_back(all.ready[at]);
        job.Announce(rank, some);
        ++sent;
      }
    }
    job.ForgetTraffic();
    ASSERT_OK(job.Deliver());

    EXPECT_EQ(CountReady(job), 60u);
    EXPECT_LT(job.ToRoot().messages, sent / 2);
  }
}

TEST(Combiner, what_is_held_is_told_in_time_with_the_ranks_that_have_come) {
  ControllerJob job(Hosts(16));
  for (int rank = 0; rank < 16; ++rank) {
    if (rank != 6) job.Announce(rank, Step(1));
  }
  ASSERT_OK(job.Deliver());

  job.Pass(
      std::chrono::milliseconds(150));  // the longest time that a rank in between holds something

  const std::vector<std::string> waiting = job.Waiting(0);
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_TRUE(waiting[0].find("ready on ranks 0-5, 7-15") != std::string::npos) << waiting[0];
  EXPECT_TRUE(waiting[0].find("for rank 6") != std::string::npos) << waiting[0];
  job.Announce(6, Step(1));
  ASSERT_OK(job.Deliver());
  EXPECT_EQ(CountReady(job), 1u);
}

TEST(Combiner, ranks_that_differ_are_named) {
  ControllerJob job(Hosts(16));
  for (int rank = 0; rank < 16; ++rank) {
    Announcement mine = Step(1);
    if (rank == 13) mine.ready[0].signature.shape = {7};
    job.Announce(rank, mine);
  }
  ASSERT_OK(job.Deliver());

  for (int rank = 0; rank < 16; ++rank) {
    ASSERT_EQ(job.agreed(rank).size(), 1u) << rank;
    ASSERT_EQ(job.agreed(rank)[0].rejected.size(), 1u) << rank;
    const Status& why = job.agreed(rank)[0].rejected[0].why;
    EXPECT_EQ(why.code(), Code::kMismatch);
    EXPECT_TRUE(why.message().find("rank 13 ") != std::string::npos) << why;
  }
}

TEST(Combiner, joined_ranks_hold_nobody_up) {
  ControllerJob job(Hosts(16));
  for (int step = 0; step < 2; ++step) {
    for (int rank = 0; rank < 16; ++rank) job.Announce(rank, Step(3));
    ASSERT_OK(job.Deliver());
    EXPECT_EQ(CountReady(job), 3u);
  }
  Announcement join;
  join.ready.emplace_back();
  join.ready[0].name = "join";
  join.ready[0].signature.kind = Kind::kJoin;
  for (int rank = 0; rank < 16; ++rank) job.Announce(rank, rank % 3 == 0 ? join : Step(3));
  ASSERT_OK(job.Deliver());
  EXPECT_EQ(CountReady(job), 3u);

  for (int rank = 0; rank < 16; ++rank)
    if (rank % 3 != 0) job.Announce(rank, join);
  ASSERT_OK(job.Deliver());

  for (int rank = 0; rank < 16; ++rank) {
    ASSERT_EQ(job.agreed(rank).size(), 1u);
    EXPECT_GE(job.agreed(rank)[0].last_joined, 0);
  }
}

TEST(Combiner, every_rank_stops_and_the_smallest_credit_counts) {
  ControllerJob job(Hosts(16));
  for (int rank = 0; rank < 16; ++rank) {
    Announcement mine;
    mine.buckets_done = static_cast<uint64_t>(20 + rank);
    job.Announce(rank, mine);
  }
  ASSERT_OK(job.Deliver());
  EXPECT_EQ(job.agreed(9).back().buckets_done, 20u);

  job.ForgetTraffic();
  Announcement stop;
  stop.wants_stop = true;
  for (int rank = 0; rank < 16; ++rank) job.Announce(rank, stop);
  ASSERT_OK(job.Deliver());

  EXPECT_TRUE(job.agreed(9).back().stop);
  EXPECT_LE(job.ToRoot().messages, 6u);
}

// What a rank says about ranks that are not below it is not believed; who comes last is one of
// them.
TEST(Combiner, refuses_to_hear_a_rank_about_others) {
  const RankTree tree = RankTree::Over({{0, 0, 0, 1, 1, 1}}, kFanOut);
  struct Said {
    RankSet ranks;
    int last_rank;
  };
  for (const Said& said : {Said{RankSet(2), 4}, Said{RankSet(4), 2}}) {
    BundleMessage bundle;
    bundle.parts.push_back({said.ranks, said.last_rank, 0, {}});
    Encode(AnnounceMessage{}, bundle.parts[0].message);
    std::vector<std::byte> bytes;
    Encode(bundle, bytes);

    Coordinator coordinator({.size = 6});
    coordinator.OnBundle(3, RankSet(tree.Subtree(3)), bytes, 0);
    Combiner combiner(3, tree, 1000);
    const Status refused = combiner.OnMessage(4, bytes, 0);

    EXPECT_EQ(coordinator.failure().culprit(), 3);
    EXPECT_EQ(refused.culprit(), 4);
    for (const Status& status : {coordinator.failure(), refused})
      EXPECT_TRUE(testing::Has(status.message(), "not below it")) << status;
  }
}

TEST(BundleWire, survives_the_wire_and_damage_is_an_error) {
  BundleMessage bundle;
  bundle.buckets_done = 300;
  const std::vector<int> ranks = {1, 2, 3, 70, 4000};
  bundle.parts.push_back({RankSet(ranks), 70, 9, {std::byte{1}, std::byte{2}}});
  bundle.parts.push_back({{}, 2, 0, {}});
  std::vector<std::byte> bytes;
  Encode(bundle, bytes);

  const auto read = DecodeBundle(bytes);

  ASSERT_OK(read);
  EXPECT_EQ(read->buckets_done, 300u);
  ASSERT_EQ(read->parts.size(), 2u);
  EXPECT_TRUE(read->parts[0].ranks.ranks() == ranks);
  EXPECT_EQ(read->parts[0].last_rank, 70);
  EXPECT_EQ(read->parts[0].ids_cycle, 9u);
  EXPECT_TRUE(read->parts[0].message == bundle.parts[0].message);
  EXPECT_TRUE(read->parts[1].ranks.empty());
  for (size_t length = 2; length < bytes.size(); ++length)
    EXPECT_FALSE(DecodeBundle(ConstBytes(bytes).first(length)).ok()) << length;
  std::mt19937 random(11);
  for (int i = 0; i < testing::SimulatedRounds(20'000); ++i) {
    std::vector<std::byte> damaged = bytes;
    for (int n = 0; n < 3; ++n)
      damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    (void)DecodeBundle(damaged);
  }
}

}  // namespace
}  // namespace rabit

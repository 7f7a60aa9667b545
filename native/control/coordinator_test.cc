#include "control/coordinator.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "testing/simulator/controller_job.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::ControllerJob;

Announcement Say(std::string name, Signature signature) {
  Announcement announcement;
  announcement.ready.push_back({std::move(name), std::move(signature)});
  return announcement;
}

Signature Floats(std::vector<int64_t> shape) {
  Signature signature;
  signature.shape = std::move(shape);
  return signature;
}

// Everything that `rank` has been told, in one agreement; forgets it.
Agreement Drain(ControllerJob& job, int rank) {
  Agreement all;
  std::vector<ReadyTensor> ready;
  for (Agreement& each : job.agreed(rank)) {
    ready.insert(ready.end(), each.ready.begin(), each.ready.end());
    std::move(each.rejected.begin(), each.rejected.end(), std::back_inserter(all.rejected));
    all.cycle = each.cycle;
    all.buckets_done = each.buckets_done;
    all.last_joined = std::max(all.last_joined, each.last_joined);
    all.stop = all.stop || each.stop;
  }
  all.ready = std::move(ready);
  job.agreed(rank).clear();
  return all;
}

TEST(Coordinator, a_tensor_is_agreed_when_its_last_member_announces_it) {
  ControllerJob job(3);
  for (int rank : {2, 0}) job.Announce(rank, Say("w", Floats({4, 2})));
  ASSERT_OK(job.Deliver());
  EXPECT_TRUE(job.agreed(1).empty());

  job.Announce(1, Say("w", Floats({4, 2})));
  ASSERT_OK(job.Deliver());

  for (int rank = 0; rank < 3; ++rank) {
    const Agreement agreement = Drain(job, rank);
    ASSERT_EQ(agreement.ready.size(), 1u);
    EXPECT_EQ(agreement.ready[0].name, "w");
    EXPECT_EQ(agreement.ready[0].id, 0);
    EXPECT_TRUE(agreement.ready[0].signature == Floats({4, 2}));
    EXPECT_EQ(agreement.cycle, 1u);
  }
}

TEST(Coordinator, a_steady_step_of_a_thousand_tensors_fits_in_a_kilobyte) {
  ControllerJob job(2);
  std::vector<int> order(1000);
  for (int i = 0; i < 1000; ++i) order[static_cast<size_t>(i)] = i;
  std::mt19937 random(5);
  for (int step = 0; step < 4; ++step) {
    job.ForgetTraffic();
    for (int rank = 0; rank < 2; ++rank) {
      std::shuffle(order.begin(), order.end(), random);
      Announcement mine;
      for (int i : order)
        mine.ready.push_back({"layer" + std::to_string(i) + ".weight", Floats({i + 1, 3})});
      mine.buckets_done = static_cast<uint64_t>(step);
      job.Announce(rank, mine);
    }
    ASSERT_OK(job.Deliver());
    EXPECT_EQ(Drain(job, 1).ready.size(), 1000u);
  }
  EXPECT_LE(job.ToRoot().bytes, 1024u);
  EXPECT_LE(job.FromRoot().bytes, 1024u);
  EXPECT_EQ(job.Counter(1, "announced_cached"), 3000u);
}

struct MismatchCase {
  const char* what;
  std::function<void(Signature&)> change;
  const char* text;
};

std::vector<MismatchCase> MismatchCases() {
  return {
      {"shape", [](Signature& s) { s.shape = {64, 3, 3, 3}; },
       "allreduce 'conv1.weight': rank 0 submitted float32[64,3,7,7], rank 2 float32[64,3,3,3]. "
       "Build the model the same way on every rank."},
      {"ndim", [](Signature& s) { s.shape = {64, 147}; },
       "float32[64,3,7,7], rank 2 float32[64,147]"},
      {"dtype", [](Signature& s) { s.dtype = DType::kFloat16; },
       "float32[64,3,7,7], rank 2 float16[64,3,7,7]"},
      {"memory", [](Signature& s) { s.axis_order = 0x1320; },
       "rank 0 submitted float32[64,3,7,7], rank 2 float32[64,3,7,7] with its axes in the order "
       "0,2,3,1 in memory. Lay the tensor out"},
      {"op", [](Signature& s) { s.op = ReduceOp::kMax; }, "submitted op sum, rank 2 op max"},
      {"kind", [](Signature& s) { s.kind = Kind::kReduceScatter; },
       "rank 0 submitted allreduce, rank 2 reducescatter"},
      {"prescale", [](Signature& s) { s.prescale = 0.5; },
       "submitted prescale 1, rank 2 prescale 0.5"},
      {"postscale", [](Signature& s) { s.postscale = 0.25; }, "postscale 1, rank 2 postscale 0.25"},
      {"codec", [](Signature& s) { s.codec = "sign:block=512"; },
       "submitted codec none, rank 2 codec sign:block=512"},
      {"backend", [](Signature& s) { s.backend = 1; }, "submitted backend -1, rank 2 backend 1"},
      {"device", [](Signature& s) { s.device_kind = DeviceKind::kCuda; },
       "submitted a tensor on the CPU, rank 2 a tensor on a GPU"},
  };
}

// Rank 2 of 4 disagrees; rank 3 comes later; 'other' is not touched; the next round works.
void CheckMismatch(const MismatchCase& one, bool is_cached) {
  ControllerJob job(4);
  Signature good = Floats({64, 3, 7, 7});
  good.op = ReduceOp::kSum;
  Signature bad = good;
  one.change(bad);
  const auto round = [&](bool is_bad, int last) {
    for (int rank = 0; rank <= last; ++rank) {
      job.Announce(rank, Say("conv1.weight", is_bad && rank == 2 ? bad : good));
      job.Announce(rank, Say("other", good));
    }
    EXPECT_OK(job.Deliver());
  };
  if (is_cached) round(false, 3);
  for (int rank = 0; rank < 4; ++rank) Drain(job, rank);

  round(true, 2);
  for (int rank = 0; rank < 3; ++rank) {
    const Agreement seen = Drain(job, rank);
    ASSERT_EQ(seen.rejected.size(), 1u);
    EXPECT_EQ(seen.rejected[0].name, "conv1.weight");
    EXPECT_EQ(seen.rejected[0].why.code(), Code::kMismatch);
    EXPECT_TRUE(seen.rejected[0].why.message().find(one.text) != std::string::npos)
        << one.what << ": " << seen.rejected[0].why.message();
  }
  EXPECT_EQ(Drain(job, 3).rejected.size(), 0u);  // has nothing in flight that could fail

  job.Announce(3, Say("conv1.weight", good));
  job.Announce(3, Say("other", good));
  ASSERT_OK(job.Deliver());
  const Agreement late = Drain(job, 3);
  ASSERT_EQ(late.rejected.size(), 1u);
  EXPECT_EQ(late.rejected[0].why.code(), Code::kMismatch);
  for (int rank = 0; rank < 3; ++rank) {
    const Agreement seen = Drain(job, rank);
    ASSERT_EQ(seen.ready.size(), 1u);
    EXPECT_EQ(seen.ready[0].name, "other");
    EXPECT_EQ(seen.rejected.size(), 0u);
  }

  round(false, 3);
  for (int rank = 0; rank < 4; ++rank) {
    const Agreement seen = Drain(job, rank);
    EXPECT_EQ(seen.ready.size(), 2u) << one.what << rank;
    EXPECT_EQ(seen.rejected.size(), 0u) << one.what << rank;
  }
}

TEST(Coordinator, disagreement_fails_one_tensor_on_every_rank_at_the_first_announcement) {
  for (const MismatchCase& one : MismatchCases()) CheckMismatch(one, false);
}

TEST(Coordinator, disagreement_fails_one_tensor_on_every_rank_when_cached) {
  for (const MismatchCase& one : MismatchCases()) CheckMismatch(one, true);
}

TEST(Coordinator, roots_must_agree_and_be_members) {
  ControllerJob job(2);
  Signature zero = Floats({3});
  zero.kind = Kind::kBroadcast;
  zero.root = 0;
  Signature one = zero;
  one.root = 1;
  Signature nobody = zero;
  nobody.root = 7;
  job.Announce(0, Say("a", zero));
  job.Announce(1, Say("a", one));
  job.Announce(0, Say("b", nobody));
  ASSERT_OK(job.Deliver());

  const Agreement seen = Drain(job, 0);
  ASSERT_EQ(seen.rejected.size(), 2u);
  std::string texts = seen.rejected[0].why.message() + seen.rejected[1].why.message();
  EXPECT_TRUE(texts.find("submitted root 0, rank 1 root 1") != std::string::npos) << texts;
  EXPECT_TRUE(texts.find("root 7, which is not a member of group 0 (ranks 0, 1)") !=
              std::string::npos)
      << texts;
}

TEST(Coordinator, priority_may_differ_and_the_lowest_rank_decides) {
  ControllerJob job(3);
  for (int rank : {2, 0, 1}) {
    Signature mine = Floats({5});
    mine.priority = 10 + rank;
    job.Announce(rank, Say("p", mine));
  }
  ASSERT_OK(job.Deliver());

  const Agreement seen = Drain(job, 2);
  ASSERT_EQ(seen.ready.size(), 1u);
  EXPECT_EQ(seen.ready[0].signature.priority, 10);
}

TEST(Coordinator, a_changed_signature_is_agreed_anew_under_the_old_id) {
  ControllerJob job(2);
  for (int64_t rows : {4, 4, 9, 9, 4}) {
    for (int rank = 0; rank < 2; ++rank) job.Announce(rank, Say("w", Floats({rows})));
    ASSERT_OK(job.Deliver());
    const Agreement seen = Drain(job, 1);
    ASSERT_EQ(seen.ready.size(), 1u);
    EXPECT_EQ(seen.ready[0].id, 0);
    EXPECT_EQ(seen.ready[0].signature.shape[0], rows);
    Drain(job, 0);
  }
  EXPECT_EQ(job.Counter(1, "announced_cached"), 2u);
}

TEST(Coordinator, gathers_carry_the_rows_of_every_rank_each_time) {
  ControllerJob job(3);
  for (int step = 0; step < 3; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      Signature mine = Floats({10 * step + rank, 7});
      mine.kind = Kind::kAllgather;
      job.Announce(rank, Say("g", mine));
    }
    ASSERT_OK(job.Deliver());
    for (int rank = 0; rank < 3; ++rank) {
      const Agreement seen = Drain(job, rank);
      ASSERT_EQ(seen.ready.size(), 1u);
      EXPECT_TRUE(
          (seen.ready[0].extents == std::vector<int64_t>{10 * step, 10 * step + 1, 10 * step + 2}));
      EXPECT_EQ(seen.ready[0].signature.shape[0], 10 * step);
    }
  }
  EXPECT_EQ(job.Counter(0, "announced_cached"), 2u);
}

TEST(Coordinator, scatter_takes_shape_and_splits_from_its_root) {
  ControllerJob job(3);
  for (int step = 0; step < 2; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      Signature mine = Floats({});
      mine.kind = Kind::kScatter;
      mine.root = 1;
      if (rank == 1) {
        mine.shape = {6, 2};
        mine.splits = {1, 2, 3};
      }
      job.Announce(rank, Say("s", mine));
    }
    ASSERT_OK(job.Deliver());
    const Agreement seen = Drain(job, 2);
    ASSERT_EQ(seen.ready.size(), 1u);
    EXPECT_TRUE((seen.ready[0].signature.shape == std::vector<int64_t>{6, 2}));
    EXPECT_TRUE((seen.ready[0].extents == std::vector<int64_t>{1, 2, 3}));
  }
}

TEST(Coordinator, send_pairs_with_the_recv_of_the_same_name_on_the_partner) {
  ControllerJob job(4);
  for (int step = 0; step < 2; ++step) {
    for (const auto& [from, to] : {std::pair{0, 1}, std::pair{3, 2}}) {
      Signature send = Floats({8});
      send.kind = Kind::kSend;
      send.root = to;
      Signature recv = Floats({8});
      recv.kind = Kind::kRecv;
      recv.root = from;
      job.Announce(to, Say("x", recv));
      job.Announce(from, Say("x", send));
    }
    ASSERT_OK(job.Deliver());
    const Agreement seen = Drain(job, 1);
    ASSERT_EQ(seen.ready.size(), 2u);
    std::set<std::vector<int64_t>> pairs;
    for (const ReadyTensor& tensor : seen.ready) {
      EXPECT_TRUE(tensor.signature.kind == Kind::kSend);
      EXPECT_EQ(tensor.signature.root, static_cast<int>(tensor.extents[1]));
      pairs.insert(tensor.extents);
    }
    EXPECT_TRUE((pairs == std::set<std::vector<int64_t>>{{0, 1}, {3, 2}}));
  }
}

TEST(Coordinator, two_ranks_may_send_to_each_other_under_one_name) {
  ControllerJob job(2);
  for (const Kind kind : {Kind::kSend, Kind::kRecv}) {
    for (int rank = 0; rank < 2; ++rank) {
      Signature mine = Floats({8});
      mine.kind = kind;
      mine.root = 1 - rank;
      job.Announce(rank, Say("x", mine));
    }
  }
  ASSERT_OK(job.Deliver());

  for (int rank = 0; rank < 2; ++rank) {
    const Agreement seen = Drain(job, rank);
    EXPECT_EQ(seen.ready.size(), 2u);
    EXPECT_EQ(seen.rejected.size(), 0u);
  }
}

TEST(Coordinator, a_stall_tells_of_the_same_name_in_another_group) {
  ControllerJob job(3);
  job.AddGroup({1, {0, 2}, -1});
  Signature elsewhere = Floats({4});
  elsewhere.group = 1;
  job.Announce(0, Say("w", Floats({4})));
  job.Announce(1, Say("w", Floats({4})));
  job.Announce(2, Say("w", elsewhere));
  ASSERT_OK(job.Deliver());

  const std::vector<std::string> lines = job.Waiting(0);

  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].find("ready on ranks 0, 1, waits 0.0 s for rank 2; rank 2 has submitted "
                            "this name as allreduce in group 1") != std::string::npos)
      << lines[0];
}

TEST(Coordinator, groups_do_not_wait_for_each_other) {
  ControllerJob job(4);
  job.AddGroup({1, {0, 1}, -1});
  job.AddGroup({2, {2, 3}, -1});
  Signature one = Floats({2});
  one.group = 1;
  Signature two = Floats({3});
  two.group = 2;
  job.Announce(2, Say("w", two));  // rank 3 stays away
  for (int step = 0; step < 3; ++step) {
    for (int rank = 0; rank < 2; ++rank) job.Announce(rank, Say("w", one));
    ASSERT_OK(job.Deliver());
    const Agreement seen = Drain(job, 3);
    ASSERT_EQ(seen.ready.size(), 1u);
    EXPECT_EQ(seen.ready[0].signature.group, 1);
  }
}

TEST(Coordinator, a_joined_rank_holds_nobody_up_and_the_last_one_is_named) {
  ControllerJob job(3);
  Signature join;
  join.kind = Kind::kJoin;
  for (int rank = 0; rank < 3; ++rank) job.Announce(rank, Say("w", Floats({2})));
  job.Announce(2, Say("join", join));
  ASSERT_OK(job.Deliver());
  for (int rank = 0; rank < 2; ++rank) job.Announce(rank, Say("w", Floats({2})));
  job.Announce(0, Say("new", Floats({7})));
  job.Announce(1, Say("new", Floats({7})));
  ASSERT_OK(job.Deliver());

  Agreement seen = Drain(job, 2);
  ASSERT_EQ(seen.ready.size(), 3u);
  EXPECT_TRUE(seen.ready[0].joined.empty());
  EXPECT_TRUE(seen.ready[1].joined == std::vector<int>{2});
  EXPECT_TRUE(seen.ready[2].joined == std::vector<int>{2});
  EXPECT_EQ(seen.ready[2].name, "new");
  EXPECT_EQ(seen.last_joined, -1);

  job.Announce(2, Say("late", Floats({1})));  // not allowed while joined
  job.Announce(0, Say("join", join));
  job.Announce(1, Say("join", join));
  ASSERT_OK(job.Deliver());
  seen = Drain(job, 2);
  EXPECT_EQ(seen.last_joined, 1);
  ASSERT_EQ(seen.rejected.size(), 1u);
  EXPECT_TRUE(seen.rejected[0].why.message().find("has called join") != std::string::npos);

  for (int rank = 0; rank < 3; ++rank) job.Announce(rank, Say("new", Floats({7})));
  ASSERT_OK(job.Deliver());
  seen = Drain(job, 2);
  ASSERT_EQ(seen.ready.size(), 1u);
  EXPECT_TRUE(seen.ready[0].joined.empty());
}

TEST(Coordinator, of_ranks_that_have_stopped_the_first_is_named) {
  ControllerJob job(3);
  Announcement stop;
  stop.wants_stop = true;
  job.Announce(1, stop);
  ASSERT_OK(job.Deliver());
  job.Announce(0, stop);
  ASSERT_OK(job.Deliver());
  job.Announce(2, Say("w", Floats({2})));
  ASSERT_OK(job.Deliver());

  const Agreement seen = Drain(job, 2);
  ASSERT_EQ(seen.rejected.size(), 1u);
  EXPECT_EQ(seen.rejected[0].why.culprit(), 1);
}

TEST(Coordinator, stop_needs_every_rank_and_rejects_what_can_never_be_ready) {
  ControllerJob job(3);
  job.Announce(0, Say("w", Floats({2})));
  Announcement stop;
  stop.wants_stop = true;
  job.Announce(1, stop);
  ASSERT_OK(job.Deliver());
  Agreement seen = Drain(job, 0);
  ASSERT_EQ(seen.rejected.size(), 1u);
  EXPECT_EQ(seen.rejected[0].why.code(), Code::kAborted);
  EXPECT_EQ(seen.rejected[0].why.culprit(), 1);
  EXPECT_TRUE(seen.rejected[0].why.message().find("rank 1 has called shutdown") !=
              std::string::npos);
  job.Announce(2, Say("w", Floats({2})));
  ASSERT_OK(job.Deliver());
  EXPECT_EQ(Drain(job, 2).rejected.size(), 1u);

  job.Announce(0, stop);
  ASSERT_OK(job.Deliver());
  EXPECT_FALSE(Drain(job, 1).stop);
  job.Announce(2, stop);
  ASSERT_OK(job.Deliver());
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(Drain(job, rank).stop);
  job.Kill(2);  // as if it had left
  job.Pass(std::chrono::seconds(1));
  for (int rank = 0; rank < 2; ++rank) EXPECT_OK(job.failure(rank));
}

TEST(Coordinator, credit_is_the_smallest) {
  ControllerJob job(2);
  Announcement mine;
  mine.buckets_done = 5;
  job.Announce(0, mine);
  mine.buckets_done = 3;
  job.Announce(1, mine);
  ASSERT_OK(job.Deliver());

  EXPECT_EQ(Drain(job, 0).buckets_done, 3u);
  EXPECT_EQ(Drain(job, 1).buckets_done, 3u);
}

TEST(Coordinator, a_vote_that_is_known_travels_by_its_number) {
  ControllerJob job(3);
  uint64_t first_bytes = 0;
  for (int64_t step = 0; step < 4; ++step) {
    job.ForgetTraffic();
    for (int rank = 0; rank < 3; ++rank) {
      Signature vote;
      vote.kind = Kind::kVote;
      vote.dtype = DType::kInt64;
      vote.shape = {rank == 1 ? step : 8};
      job.Announce(rank, Say("vote", vote));
    }
    ASSERT_OK(job.Deliver());
    if (step == 0) first_bytes = job.ToRoot().bytes;
    for (int rank = 0; rank < 3; ++rank) {
      const Agreement seen = Drain(job, rank);
      ASSERT_EQ(seen.ready.size(), 1u);
      EXPECT_EQ(seen.ready[0].extents, std::vector<int64_t>{step | 8});
    }
  }
  EXPECT_TRUE(job.ToRoot().bytes < first_bytes / 2);
}

TEST(Coordinator, a_stall_names_the_tensor_and_the_missing_ranks_and_ends_in_a_failure) {
  ControllerJob job(RankTree::Star(4),
                    {.controller = {.stall_warning_ms = 12'300, .stall_abort_ms = 60'000}});
  for (int rank = 0; rank < 3; ++rank) job.Announce(rank, Say("conv1.weight", Floats({64})));
  ASSERT_OK(job.Deliver());
  job.Pass(std::chrono::milliseconds(12'299));
  EXPECT_TRUE(job.Waiting(3).empty());

  job.Pass(std::chrono::milliseconds(2));  // rank 0 tells all
  ASSERT_EQ(job.Waiting(3).size(), 1u);
  EXPECT_EQ(job.Waiting(3)[0],
            "'conv1.weight' (allreduce float32[64]): ready on ranks 0-2, waits 12.3 s for rank 3");

  job.Pass(std::chrono::seconds(60));
  EXPECT_EQ(job.failure(0).code(), Code::kTimedOut);
  EXPECT_EQ(
      job.failure(0).message(),
      "no progress for 60 s, the limit for stalls; 'conv1.weight' (allreduce float32[64]): "
      "ready on ranks 0-2, waits 60.0 s for rank 3. Submit the same tensors on every rank, or "
      "raise RABIT_STALL_ABORT.");
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(job.failure(rank).culprit(), 3);
    EXPECT_EQ(job.failure(rank).message(), job.failure(0).message());
  }
}

TEST(Coordinator, the_report_ends_with_the_stall) {
  ControllerJob job(RankTree::Star(2), {.controller = {.stall_warning_ms = 10}});
  job.Announce(0, Say("w", Floats({1})));
  job.Pass(std::chrono::milliseconds(15));
  ASSERT_EQ(job.Waiting(1).size(), 1u);
  job.Announce(1, Say("w", Floats({1})));
  ASSERT_OK(job.Deliver());
  job.ForgetTraffic();

  job.Pass(std::chrono::milliseconds(15));
  EXPECT_TRUE(job.Waiting(1).empty());
  EXPECT_EQ(job.FromRoot().messages, 1u);
  job.Pass(std::chrono::seconds(10));
  EXPECT_EQ(job.FromRoot().messages, 1u);  // and then rank 0 is silent
}

TEST(Coordinator, keeps_who_was_waited_for_and_how_long) {
  ControllerJob job(3);
  for (int step = 0; step < 2; ++step) {
    for (int rank : {2, 0, 1}) {
      job.Pass(std::chrono::microseconds(rank == 1 ? 500 : 10));
      job.Announce(rank, Say(step == 0 ? "a" : "b\"", Floats({1})));
      ASSERT_OK(job.Deliver());
    }
  }

  const std::string statistics = job.StatisticsOf(0);
  EXPECT_EQ(statistics.substr(statistics.find("\"waited_for")),
            "\"waited_for\":[{\"rank\":1,\"times\":2,\"total_us\":1000,\"max_us\":500,"
            "\"worst_tensor\":\"a\"}],\"skew\":[{\"tensor\":\"a\",\"max_us\":510,\"last_rank\":1},"
            "{\"tensor\":\"b\\\"\",\"max_us\":510,\"last_rank\":1}]");
}

TEST(Coordinator, counts_time_once_in_which_several_tensors_wait_for_a_rank) {
  ControllerJob job(2);
  const auto announce = [&](int rank, const char* name, int64_t after_us) {
    job.Pass(std::chrono::microseconds(after_us));
    job.Announce(rank, Say(name, Floats({1})));
    ASSERT_OK(job.Deliver());
  };
  announce(0, "first", 0);     // waits from 0 to 1100
  announce(0, "second", 100);  // waits from 100 to 500
  announce(0, "third", 100);   // waits from 200 to 700
  announce(1, "second", 300);
  announce(1, "third", 200);
  announce(1, "first", 400);
  announce(0, "fourth", 100);  // waits from 1200 to 1250
  announce(1, "fourth", 50);

  const std::string statistics = job.StatisticsOf(0);
  EXPECT_TRUE(statistics.find("{\"rank\":1,\"times\":4,\"total_us\":1150,\"max_us\":1100,") !=
              std::string::npos)
      << statistics;
}

TEST(Coordinator, a_cause_given_by_a_rank_reaches_the_others) {
  ControllerJob job(3);
  job.Abandon(2, PeerLost(1, "rank 1 closed its connection"));
  (void)job.Deliver();
  job.Kill(2);
  job.Pass(std::chrono::seconds(1));

  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(job.failure(rank).code(), Code::kPeerLost);
    EXPECT_EQ(job.failure(rank).culprit(), 1);
    EXPECT_EQ(job.failure(rank).message(), "rank 2 gave up: rank 1 closed its connection");
  }
}

TEST(Coordinator, a_proposal_reaches_every_rank_in_one_agreement) {
  ControllerJob job(RankTree::Star(3), {.controller = {.announces_credit = false}});
  const Tunables tunables{.partition_bytes = 4096, .credit_bytes = 100};
  Announcement proposal;
  proposal.tunables = tunables;
  job.Announce(0, proposal);
  ASSERT_OK(job.Deliver());
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(job.agreed(rank).size(), 1u);
    EXPECT_EQ(job.agreed(rank).front().cycle, 1u);
    EXPECT_TRUE(job.agreed(rank).front().tunables == tunables);
    job.agreed(rank).clear();
  }

  // With a window, ranks that hold back must hear of credit.
  for (int rank = 0; rank < 3; ++rank) {
    Announcement done;
    done.buckets_done = 5;
    job.Announce(rank, done);
  }
  ASSERT_OK(job.Deliver());
  ASSERT_EQ(job.agreed(1).size(), 1u);
  EXPECT_EQ(job.agreed(1).front().buckets_done, 5u);
  EXPECT_FALSE(job.agreed(1).front().tunables.has_value());
}

}  // namespace
}  // namespace rabit

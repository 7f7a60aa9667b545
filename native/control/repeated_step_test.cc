// Steps that repeat the last one take a shorter way.  Whatever they deviate in, the ranks must
// agree on the same as if every entry had been announced as such.
#include <map>
#include <random>
#include <string>
#include <vector>

#include "control/announcer.h"
#include "testing/sanitizer.h"
#include "testing/simulator/controller_job.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::ControllerJob;

constexpr int kStepRanks = 3;
constexpr GroupId kPair = 1;  // ranks 0 and 1

using Entries = std::vector<Announcement::Entry>;

Announcement::Entry Tensor(int number) {
  Announcement::Entry entry;
  entry.name = "t" + std::to_string(number);
  entry.signature.shape = {number + 1};
  entry.signature.priority = -number;
  return entry;
}

Entries Tensors(int count) {
  Entries entries;
  for (int i = 0; i < count; ++i) entries.push_back(Tensor(i));
  return entries;
}

// Announces as the engine does: by version where the announcer knows it.  With `repeats` false
// every entry is announced as such, without a version: the general way.
class StepJob {
 public:
  explicit StepJob(bool repeats, size_t cache_capacity = 1 << 14)
      : repeats_(repeats),
        job_(RankTree::Star(kStepRanks), {.controller = {.cache_capacity = cache_capacity}}) {
    job_.AddGroup({.id = kPair, .ranks = {0, 1}});
  }

  void Announce(int rank, const Entries& entries) {
    Announcement mine;
    for (Announcement::Entry entry : entries) {
      entry.token = next_token_++;
      entry.version = repeats_ ? VersionOf(rank, entry) : 0;
      said_[{rank, entry.token}] = entry;
      if (mine.ready.empty() && job_.Repeat(rank, entry.version, entry.token)) {
        ++repeated;
      } else {
        mine.ready.push_back(std::move(entry));
      }
    }
    job_.Announce(rank, mine);
  }
  void AnnounceAll(const Entries& entries) {
    for (int rank = 0; rank < kStepRanks; ++rank) Announce(rank, entries);
  }
  void Deliver() { ASSERT_OK(job_.Deliver()); }

  // What `rank` has been told since the last call; a token as the name that it stands for.
  std::vector<std::string> Told(int rank) {
    std::vector<std::string> told;
    for (const Agreement& agreement : job_.agreed(rank)) {
      EXPECT_EQ(agreement.tokens.size(), agreement.ready.size());
      for (size_t i = 0; i < agreement.ready.size(); ++i) {
        const ReadyTensor& tensor = agreement.ready[i];
        std::string line = std::to_string(tensor.id) + " " + tensor.name + " " +
                           Describe(tensor.signature) + " " +
                           std::to_string(tensor.signature.priority);
        for (int64_t extent : tensor.extents) line += " " + std::to_string(extent);
        for (int joined : tensor.joined) line += " joined " + std::to_string(joined);
        const auto said = said_.find({rank, agreement.tokens[i]});
        if (said == said_.end()) {
          line += " (none of mine)";
        } else {
          EXPECT_EQ(said->second.name, tensor.name);
          said_.erase(said);
        }
        told.push_back(line);
      }
      for (const Rejection& rejection : agreement.rejected) {
        told.push_back("rejected " + rejection.name);
        said_.erase({rank, rejection.token});
      }
      if (agreement.last_joined >= 0) told.push_back("joined");
      lists.push_back(agreement.ready);
    }
    job_.agreed(rank).clear();
    return told;
  }

  int repeated = 0;
  std::vector<ReadyTensors> lists;

 private:
  uint64_t VersionOf(int rank, const Announcement::Entry& entry) {
    auto& [signature, version] =
        versions_[{rank, entry.name + std::to_string(entry.signature.group)}];
    if (version == 0 || signature != entry.signature) version = ++last_version_;
    signature = entry.signature;
    return version;
  }

  const bool repeats_;
  ControllerJob job_;
  int32_t next_token_ = 0;
  uint64_t last_version_ = 0;
  std::map<std::pair<int, std::string>, std::pair<Signature, uint64_t>> versions_;
  std::map<std::pair<int, int32_t>, Announcement::Entry> said_;
};

TEST(RepeatedStep, is_announced_by_version_and_agreed_as_the_same_list) {
  StepJob job(true);
  for (int step = 0; step < 4; ++step) {
    job.AnnounceAll(Tensors(8));
    job.Deliver();
    EXPECT_EQ(job.Told(0).size(), 8u);
    // The second one learns the versions, the third one what the first tensor follows.
    EXPECT_EQ(job.repeated, step < 3 ? 0 : 24);
  }

  ASSERT_EQ(job.lists.size(), 4u);
  EXPECT_FALSE(job.lists[1].IsSameAs(job.lists[0]));
  EXPECT_TRUE(job.lists[2].IsSameAs(job.lists[1]));
  EXPECT_TRUE(job.lists[3].IsSameAs(job.lists[1]));
}

// In the last of five steps; expects that its list is one of its own.
void ExpectOwnList(const Entries& last, const char* what) {
  StepJob job(true);
  for (int step = 0; step < 4; ++step) {
    job.AnnounceAll(Tensors(6));
    job.Deliver();
  }
  job.AnnounceAll(last);
  job.Deliver();
  EXPECT_GT(job.Told(0).size(), 0u);
  ASSERT_EQ(job.lists.size(), 5u);
  EXPECT_TRUE(job.lists[3].IsSameAs(job.lists[2])) << what;
  EXPECT_FALSE(job.lists[4].IsSameAs(job.lists[3])) << what;
}

TEST(RepeatedStep, a_deviation_makes_a_list_of_its_own) {
  Entries missing = Tensors(6);
  missing.erase(missing.begin() + 2);
  ExpectOwnList(missing, "a tensor is missing");
  ExpectOwnList(Tensors(7), "a tensor more");
  Entries resized = Tensors(6);
  resized[3].signature.shape = {70};
  ExpectOwnList(resized, "another size");
  Entries urgent = Tensors(6);
  urgent[5].signature.priority = 9;
  ExpectOwnList(urgent, "another priority");
  Entries gather = Tensors(6);
  gather[1].signature.kind = Kind::kAllgather;
  ExpectOwnList(gather, "another kind");
}

TEST(RepeatedStep, in_another_order_is_the_same_list) {
  StepJob job(true);
  for (int step = 0; step < 3; ++step) {
    job.AnnounceAll(Tensors(6));
    job.Deliver();
  }
  Entries turned = Tensors(6);
  std::reverse(turned.begin(), turned.end());
  job.AnnounceAll(turned);
  job.Deliver();

  EXPECT_EQ(job.Told(2).size(), 24u);
  EXPECT_TRUE(job.lists[3].IsSameAs(job.lists[2]));
}

// One step of random content, the same for both jobs.
void RandomStep(std::mt19937& random, const std::vector<StepJob*>& jobs) {
  Entries entries = Tensors(20);
  const auto any = [&]() -> Announcement::Entry& { return entries[random() % entries.size()]; };
  std::vector<Entries> of(kStepRanks, entries);
  switch (random() % 12) {
    case 0:
      entries.erase(entries.begin() + static_cast<int>(random() % 20));
      break;
    case 1:
      any().signature.shape = {static_cast<int64_t>(random() % 3) + 100};
      break;
    case 2:
      any().signature.priority = static_cast<int32_t>(random() % 5);
      break;
    case 3:
      std::shuffle(entries.begin(), entries.end(), random);
      break;
    case 4:
      any().signature.kind = Kind::kAllgather;
      break;
    case 5:
      for (int i = 0; i < 8; ++i) entries.push_back(Tensor(100 + static_cast<int>(random() % 40)));
      std::sort(entries.begin(), entries.end(),
                [](const auto& a, const auto& b) { return a.name < b.name; });
      entries.erase(std::unique(entries.begin(), entries.end(),
                                [](const auto& a, const auto& b) { return a.name == b.name; }),
                    entries.end());
      break;
    default:
      break;  // as ever
  }
  for (Entries& each : of) each = entries;
  if (random() % 8 == 0)
    of[random() % kStepRanks][random() % 10].signature.shape = {9, 9};  // a mismatch
  if (random() % 8 == 0) {
    const size_t which = random() % 10;
    for (int rank : {0, 1}) of[static_cast<size_t>(rank)][which].signature.group = kPair;
    of[2].erase(of[2].begin() + static_cast<int>(which));
  }
  Announcement::Entry join;
  join.name = "join";
  join.signature.kind = Kind::kJoin;
  const int joins = random() % 10 == 0 ? static_cast<int>(random() % kStepRanks) : -1;
  const size_t cut = random() % 3 == 0 ? random() % 10 : 0;
  for (StepJob* job : jobs) {
    for (int rank = 0; rank < kStepRanks; ++rank) {
      const Entries& mine = of[static_cast<size_t>(rank)];
      if (rank == joins) {
        job->Announce(rank, {join, Tensor(0)});  // refused: it has joined
      } else if (cut > 0) {
        job->Announce(rank, Entries(mine.begin(), mine.begin() + static_cast<int>(cut)));
        job->Announce(rank, Entries(mine.begin() + static_cast<int>(cut), mine.end()));
      } else {
        job->Announce(rank, mine);
      }
    }
    job->Deliver();
    for (int rank = 0; joins >= 0 && rank < kStepRanks; ++rank)
      if (rank != joins) job->Announce(rank, {join});
    job->Deliver();
  }
}

// With room for 24 names, new ones take ids back.
TEST(RepeatedStep, random_deviations_are_agreed_as_in_the_general_way) {
  const auto seeds = static_cast<unsigned>(testing::SimulatedRounds(20));
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    std::mt19937 random(seed);
    StepJob quick(true, 24);
    StepJob general(false, 24);
    for (int step = 0; step < 60; ++step) {
      RandomStep(random, {&quick, &general});
      for (int rank = 0; rank < kStepRanks; ++rank) {
        const std::vector<std::string> told = quick.Told(rank);
        ASSERT_TRUE(told == general.Told(rank)) << "seed " << seed << " step " << step;
        ASSERT_FALSE(told.empty());
      }
    }
    EXPECT_GT(quick.repeated, 300) << "seed " << seed;
    EXPECT_EQ(general.repeated, 0);
  }
}

// What is repeated waits for the next announcement; if its id is taken back before that, the tensor
// is announced again in full, and the id not at all.
TEST(RepeatedStep, an_id_that_is_taken_back_before_the_announcement_is_not_sent) {
  Announcer announcer(1, 2);
  Announcement mine;
  mine.ready.push_back(Tensor(0));
  mine.ready[0].version = 7;
  (void)announcer.Prepare(mine, 0);
  AgreeMessage first;
  first.cycle = 1;
  first.definitions.push_back(
      {{0, {}, {}}, KeyOf("t0", mine.ready[0].signature, 1), mine.ready[0].signature});
  ASSERT_OK(announcer.Apply(std::move(first)).status());
  for (uint64_t cycle : {2, 3}) {
    (void)announcer.Prepare(mine, 0);
    AgreeMessage again;
    again.cycle = cycle;
    again.plain = {0};
    ASSERT_OK(announcer.Apply(std::move(again)).status());
  }
  ASSERT_TRUE(announcer.Repeat(7, 11));

  AgreeMessage taken;
  taken.cycle = 4;
  taken.evicted = {0};
  ASSERT_OK(announcer.Apply(std::move(taken)).status());

  EXPECT_TRUE(announcer.Prepare(Announcement(), 0).cached.empty());
  const auto resent = announcer.TakeResend();
  ASSERT_TRUE(resent.has_value());
  EXPECT_EQ(resent->full.size(), 1u);
}

}  // namespace
}  // namespace rabit

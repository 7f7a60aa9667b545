// Agreements that repeat the last one share its list.  Whatever a step deviates in, the ranks must
// agree on the same as if ids were never remembered.
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

class StepJob {
 public:
  explicit StepJob(size_t cache_capacity = 1 << 14)
      : job_(RankTree::Star(kStepRanks), {.controller = {.cache_capacity = cache_capacity}}) {
    job_.AddGroup({.id = kPair, .ranks = {0, 1}});
  }

  void Announce(int rank, const Entries& entries) {
    Announcement mine;
    for (Announcement::Entry entry : entries) {
      entry.token = next_token_++;
      said_[{rank, entry.token}] = entry;
      mine.ready.push_back(std::move(entry));
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

  std::vector<ReadyTensors> lists;

 private:
  ControllerJob job_;
  int32_t next_token_ = 0;
  std::map<std::pair<int, int32_t>, Announcement::Entry> said_;
};

TEST(RepeatedStep, is_agreed_as_the_same_list) {
  StepJob job;
  for (int step = 0; step < 4; ++step) {
    job.AnnounceAll(Tensors(8));
    job.Deliver();
    EXPECT_EQ(job.Told(0).size(), 8u);
  }

  ASSERT_EQ(job.lists.size(), 4u);
  EXPECT_FALSE(job.lists[1].IsSameAs(job.lists[0]));
  EXPECT_TRUE(job.lists[2].IsSameAs(job.lists[1]));
  EXPECT_TRUE(job.lists[3].IsSameAs(job.lists[1]));
}

// In the last of five steps; expects that its list is one of its own.
void ExpectOwnList(const Entries& last, const char* what) {
  StepJob job;
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
  StepJob job;
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

// One step of random content.
void RandomStep(std::mt19937& random, StepJob& job) {
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
  for (int rank = 0; rank < kStepRanks; ++rank) {
    const Entries& mine = of[static_cast<size_t>(rank)];
    if (rank == joins) {
      job.Announce(rank, {join, Tensor(0)});  // refused: it has joined
    } else if (cut > 0) {
      job.Announce(rank, Entries(mine.begin(), mine.begin() + static_cast<int>(cut)));
      job.Announce(rank, Entries(mine.begin() + static_cast<int>(cut), mine.end()));
    } else {
      job.Announce(rank, mine);
    }
  }
  job.Deliver();
  for (int rank = 0; joins >= 0 && rank < kStepRanks; ++rank)
    if (rank != joins) job.Announce(rank, {join});
  job.Deliver();
}

// With room for 24 names, new ones take ids back.
TEST(RepeatedStep, random_deviations_are_answered_under_their_own_tokens) {
  const auto seeds = static_cast<unsigned>(testing::SimulatedRounds(20));
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    std::mt19937 random(seed);
    StepJob job(24);
    for (int step = 0; step < 60; ++step) {
      RandomStep(random, job);
      for (int rank = 0; rank < kStepRanks; ++rank)
        ASSERT_FALSE(job.Told(rank).empty()) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace rabit

// Messages that cross on their way: random delivery orders, a small table of ids, disagreements.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "control/simulated_job.h"
#include "testing/test.h"

namespace rabit {
namespace {

constexpr int kSize = 4;
constexpr int kNames = 12;
constexpr int kRounds = 8;

// Every rank submits every name kRounds times, one open at a time per name, in its own order.  In
// some rounds one rank disagrees.  However messages cross, every submission ends exactly once, the
// same way on all ranks.
class CrossingJob {
 public:
  CrossingJob(uint32_t seed, size_t capacity)
      : random_(seed), job_({.size = kSize, .cache_capacity = capacity}) {
    for (int i = 0; i < kNames * kRounds; ++i)
      culprit_.push_back(random_() % 5 == 0 ? static_cast<int>(random_() % kSize) : -1);
  }

  void Run() {
    for (int step = 0; step < 200'000 && !IsFinished(); ++step) Step();
    EXPECT_TRUE(IsFinished());
    EXPECT_OK(job_.coordinator().failure());
    for (int rank = 0; rank < kSize; ++rank) {
      for (int name = 0; name < kNames; ++name) {
        for (int round = 0; round < kRounds; ++round) {
          const bool is_bad = culprit_[static_cast<size_t>(name * kRounds + round)] >= 0;
          EXPECT_EQ(outcome(rank, name, round), is_bad ? 'x' : 'r') << rank << name << round;
        }
      }
    }
    for (int rank = 1; rank < kSize; ++rank) EXPECT_TRUE(order_[rank] == order_[0]);
  }

 private:
  char& outcome(int rank, int name, int round) {
    return outcome_[((rank * kNames) + name) * kRounds + round];
  }

  bool IsFinished() const {
    for (const auto& each : round_)
      for (int round : each)
        if (round < kRounds) return false;
    return true;
  }

  void Step() {
    const int rank = static_cast<int>(random_() % kSize);
    switch (random_() % 3) {
      case 0:
        return Submit(rank);
      case 1:
        if (job_.HasUp(rank)) job_.DeliverUp(rank);
        return;
      default:
        if (job_.HasDown(rank)) {
          EXPECT_OK(job_.DeliverDown(rank));
        }
        return Take(rank);
    }
  }

  void Submit(int rank) {
    Announcement announcement;
    for (int name = 0; name < kNames; ++name) {
      const int round = round_[rank][name];
      if (open_[rank][name] || round == kRounds || random_() % 2 == 0) continue;
      open_[rank][name] = true;
      Announcement::Entry entry;
      entry.name = "t" + std::to_string(name);
      entry.signature.shape = {name + 1};
      if (culprit_[static_cast<size_t>(name * kRounds + round)] == rank)
        entry.signature.shape = {name + 1, 2};
      announcement.ready.push_back(std::move(entry));
    }
    job_.Announce(rank, announcement);
    Take(rank);
  }

  void Take(int rank) {
    for (const Agreement& agreement : job_.agreed(rank)) {
      for (const ReadyTensor& tensor : agreement.ready) {
        order_[rank].push_back(tensor.name);
        Finish(rank, tensor.name, 'r');
      }
      for (const Rejection& rejected : agreement.rejected) Finish(rank, rejected.name, 'x');
    }
    job_.agreed(rank).clear();
  }

  void Finish(int rank, const std::string& text, char how) {
    const int name = std::stoi(text.substr(1));
    EXPECT_TRUE(open_[rank][name]) << text << how;
    open_[rank][name] = false;
    if (round_[rank][name] < kRounds) outcome(rank, name, round_[rank][name]++) = how;
  }

  std::mt19937 random_;
  SimulatedJob job_;
  std::vector<int> culprit_;  // by name and round; -1: all agree
  int round_[kSize][kNames] = {};
  bool open_[kSize][kNames] = {};
  char outcome_[kSize * kNames * kRounds] = {};
  std::vector<std::string> order_[kSize];
};

TEST(Crossing, every_submission_ends_once_and_alike_whatever_crosses) {
  for (uint32_t seed = 0; seed < 150 && !testing::CurrentTestFailed(); ++seed) {
    CrossingJob(seed, 1 << 14).Run();
    CrossingJob(seed, 5).Run();
    CrossingJob(seed, 1).Run();
  }
}

}  // namespace
}  // namespace rabit

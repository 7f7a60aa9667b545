// Messages that cross on their way: random delivery orders, a small table of ids, disagreements.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "arithmetic/reduce.h"
#include "testing/sanitizer.h"
#include "testing/simulator/controller_job.h"
#include "testing/test.h"

namespace rabit {
namespace {

constexpr GroupId kOdd = 1;
constexpr int kNames = 12;
constexpr int kRounds = 8;
// Ranks in between hold an announcement for a quarter of it: about as long as the ranks differ.
constexpr int64_t kStallWarningMs = 1;

// Every rank submits every name kRounds times, one open at a time per name, in its own order.  In
// some rounds one rank disagrees.  Every third name belongs to a group of some ranks.  However
// messages cross, and whoever passes them on, every submission ends exactly once, the same way on
// all ranks, and all ranks see one order.  Some submissions bring their data: if all of a round do,
// the agreement holds the sum in rank order, otherwise none.
class CrossingJob {
 public:
  CrossingJob(uint32_t seed, size_t capacity, const RankTree& tree)
      : size_(tree.size()),
        random_(seed),
        job_(tree, {.controller = {.cache_capacity = capacity, .stall_warning_ms = kStallWarningMs},
                    .delay_us_max = 60,
                    .seed = seed}),
        round_(static_cast<size_t>(size_ * kNames)),
        open_(round_.size()),
        outcome_(round_.size() * kRounds),
        brings_(outcome_.size()),
        keeps_data_(capacity > kNames),
        order_(static_cast<size_t>(size_)) {
    sum_.resize(static_cast<size_t>(kNames * kRounds));
    Group odd{kOdd, {}};
    for (int rank = 1; rank < size_; rank += 2) odd.ranks.push_back(rank);
    job_.AddGroup(odd);
    for (int i = 0; i < kNames * kRounds; ++i) {
      int culprit = random_() % 5 == 0 ? static_cast<int>(random_() % size()) : -1;
      if (culprit >= 0 && !IsMember(culprit, i / kRounds)) culprit = 1;
      culprit_.push_back(culprit);
      // Of every second round all bring their data, of the others one rank may not.
      const int silent = random_() % 2 == 0 ? -1 : static_cast<int>(random_() % size());
      for (int rank = 0; rank < size_; ++rank)
        brings_[Place(rank, i / kRounds) * kRounds + static_cast<size_t>(i % kRounds)] =
            rank != silent;
    }
    for (int rank = 0; rank < size_; ++rank) {
      for (int name = 0; name < kNames; ++name)
        if (!IsMember(rank, name)) round(rank, name) = kRounds;
    }
  }

  void Run() {
    for (int step = 0; step < 40'000 && !IsFinished(); ++step) Step();
    EXPECT_TRUE(IsFinished());
    EXPECT_OK(job_.Deliver());
    for (int rank = 0; rank < size_; ++rank) Take(rank);
    for (int rank = 0; rank < size_; ++rank) {
      for (int name = 0; name < kNames; ++name) {
        for (int round = 0; round < kRounds && IsMember(rank, name); ++round) {
          const bool is_bad = culprit_[static_cast<size_t>(name * kRounds + round)] >= 0;
          EXPECT_EQ(outcome(rank, name, round), is_bad ? 'x' : 'r') << rank << name << round;
        }
      }
    }
    for (const auto& order : order_) EXPECT_TRUE(order == order_[0]);
    if (keeps_data_) {
      EXPECT_GT(carried_, 0);
    }
  }

 private:
  // Half of them are of the kind that rank 0 forgets early.
  static std::string NameOf(int name) {
    return (name % 2 == 0 ? "t" : "t.noname.") + std::to_string(name);
  }
  static int NumberIn(const std::string& text) {
    return std::stoi(text.substr(text.find_last_not_of("0123456789") + 1));
  }
  static bool IsMember(int rank, int name) { return name % 3 != 2 || rank % 2 == 1; }
  static size_t Place(int rank, int name) { return static_cast<size_t>(rank * kNames + name); }
  unsigned size() const { return static_cast<unsigned>(size_); }
  int& round(int rank, int name) { return round_[Place(rank, name)]; }
  char& open(int rank, int name) { return open_[Place(rank, name)]; }
  char& outcome(int rank, int name, int round) {
    return outcome_[Place(rank, name) * kRounds + static_cast<size_t>(round)];
  }

  bool brings(int rank, int name, int round) const {
    return brings_[Place(rank, name) * kRounds + static_cast<size_t>(round)];
  }

  bool IsFinished() const {
    return std::all_of(round_.begin(), round_.end(), [](int round) { return round == kRounds; });
  }

  // A rank submits something, and some time passes, in which messages arrive.
  void Step() {
    Submit(static_cast<int>(random_() % size()));
    job_.Pass(std::chrono::microseconds(random_() % 100));
    for (int rank = 0; rank < size_; ++rank) {
      EXPECT_OK(job_.failure(rank));
      Take(rank);
    }
  }

  void Submit(int rank) {
    Announcement announcement;
    for (int name = 0; name < kNames; ++name) {
      const int at = round(rank, name);
      if (open(rank, name) || at == kRounds || random_() % 2 == 0) continue;
      open(rank, name) = true;
      Announcement::Entry entry;
      entry.name = NameOf(name);
      entry.signature.shape = {name + 1};
      entry.signature.group = name % 3 == 2 ? kOdd : kWorld;
      if (culprit_[static_cast<size_t>(name * kRounds + at)] == rank)
        entry.signature.shape = {name + 1, 2};
      if (brings(rank, name, at)) entry.data = InputOf(rank, name, at, entry.signature.count());
      announcement.ready.push_back(std::move(entry));
    }
    job_.Announce(rank, announcement);
    Take(rank);
  }

  void Take(int rank) {
    for (const Agreement& agreement : job_.agreed(rank)) {
      for (const ReadyTensor& tensor : agreement.ready) {
        order_[static_cast<size_t>(rank)].push_back(tensor.name);
        CheckData(rank, tensor);
        Finish(rank, tensor.name, 'r');
      }
      for (const Rejection& rejected : agreement.rejected) Finish(rank, rejected.name, 'x');
    }
    job_.agreed(rank).clear();
  }

  static std::vector<std::byte> InputOf(int rank, int name, int round, int64_t count) {
    std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(float));
    auto* const values = reinterpret_cast<float*>(bytes.data());
    for (int64_t i = 0; i < count; ++i)
      values[i] = 1.0f / static_cast<float>(1 + 7 * rank + 3 * name + round + i);
    return bytes;
  }

  void CheckData(int rank, const ReadyTensor& tensor) {
    const int name = NumberIn(tensor.name);
    if (!IsMember(rank, name)) return;
    const int at = round(rank, name);
    bool all_bring = true;
    for (int each = 0; each < size_; ++each)
      all_bring = all_bring && (!IsMember(each, name) || brings(each, name, at));
    // An id that is taken back is announced again without the data.
    EXPECT_EQ(!tensor.data.empty(), all_bring && (keeps_data_ || !tensor.data.empty()))
        << tensor.name << ", round " << at;
    if (tensor.data.empty()) return;
    std::vector<std::byte>& sum = sum_[static_cast<size_t>(name * kRounds + at)];
    if (sum.empty()) sum = SumOf(name, at, tensor.signature.count());
    EXPECT_TRUE(tensor.data == sum) << tensor.name << ", round " << at;
    ++carried_;
  }

  std::vector<std::byte> SumOf(int name, int round, int64_t count) const {
    std::vector<std::vector<std::byte>> inputs;
    std::vector<const std::byte*> pointers;
    for (int rank = 0; rank < size_; ++rank)
      if (IsMember(rank, name)) inputs.push_back(InputOf(rank, name, round, count));
    for (const auto& input : inputs) pointers.push_back(input.data());
    std::vector<std::byte> sum(inputs[0].size());
    Reduce(ReduceOp::kSum, DType::kFloat32, pointers, sum.data(), count);
    return sum;
  }

  void Finish(int rank, const std::string& text, char how) {
    const int name = NumberIn(text);
    if (!IsMember(rank, name)) return;
    EXPECT_TRUE(open(rank, name)) << text << how;
    open(rank, name) = false;
    if (round(rank, name) < kRounds) outcome(rank, name, round(rank, name)++) = how;
  }

  const int size_;
  std::mt19937 random_;
  testing::ControllerJob job_;
  std::vector<int> culprit_;  // by name and round; -1: all agree
  std::vector<int> round_;    // by rank and name
  std::vector<char> open_;
  std::vector<char> outcome_;
  std::vector<bool> brings_;                 // data
  std::vector<std::vector<std::byte>> sum_;  // by name and round; empty: not computed yet
  const bool keeps_data_;
  int carried_ = 0;  // agreements that held a sum
  std::vector<std::vector<std::string>> order_;
};

RankTree OneHost(int size, int fan_out) {
  return RankTree::Over({std::vector<int>(static_cast<size_t>(size), 0)}, fan_out);
}

TEST(Crossing, every_submission_ends_once_and_alike_whatever_crosses) {
  const auto seeds = static_cast<uint32_t>(testing::SimulatedRounds(100));
  for (uint32_t seed = 0; seed < seeds && !testing::CurrentTestFailed(); ++seed) {
    for (size_t capacity : {1 << 14, 5, 1}) CrossingJob(seed, capacity, RankTree::Star(4)).Run();
  }
}

TEST(Crossing, a_tree_agrees_as_a_star_does) {
  const auto seeds = static_cast<uint32_t>(testing::SimulatedRounds(50));
  for (uint32_t seed = 0; seed < seeds && !testing::CurrentTestFailed(); ++seed) {
    for (size_t capacity : {1 << 14, 5, 1}) {
      CrossingJob(seed, capacity, OneHost(4, 1)).Run();
      CrossingJob(seed, capacity, OneHost(9, 2)).Run();
    }
  }
}

}  // namespace
}  // namespace rabit

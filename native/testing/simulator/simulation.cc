#include "testing/simulator/simulation.h"

#include <algorithm>
#include <utility>

#include "codec/codec_table.h"

namespace rabit::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Longer than any fault takes to be found, and than any stall lasts that ends by itself.
constexpr auto kPatience = std::chrono::seconds(120);
constexpr int kStallAbortMs = 4000;
// What a rank of a plain job has open at a time, as if its network took so much: what thousands of
// ranks have open has to fit into one machine.
constexpr int kOpenMax = 256;
constexpr int kBatchMax = 128;
// What all ranks of a job together remember of tensors by their numbers: some 600 bytes each.
constexpr size_t kRememberedMax = 8 << 20;

enum class Fault { kNone, kKill, kKillTwo, kCut, kFreeze, kSilence, kAbort, kHold };
constexpr Fault kFaults[] = {Fault::kNone,    Fault::kNone,  Fault::kNone,    Fault::kKill,
                             Fault::kKill,    Fault::kCut,   Fault::kKillTwo, Fault::kFreeze,
                             Fault::kSilence, Fault::kAbort, Fault::kHold};

std::string Name(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "no fault";
    case Fault::kKill:
      return "a rank dies";
    case Fault::kKillTwo:
      return "two ranks die";
    case Fault::kCut:
      return "a connection is lost";
    case Fault::kFreeze:
      return "ranks stand still for a while";
    case Fault::kSilence:
      return "a rank submits nothing any more";
    case Fault::kAbort:
      return "a rank gives up";
    case Fault::kHold:
      return "messages are held back for a while";
  }
  return "";
}

RankTree RandomTree(int size, Dice& dice) {
  if (dice.OneIn(3)) return RankTree::Star(size);
  Topology topology;
  const int per_host = dice.Between(1, size);
  for (int rank = 0; rank < size; ++rank) topology.host_of.push_back(rank / per_host);
  return RankTree::Over(topology, dice.Between(1, 3));
}

RankTree LargeTree(int size) {
  if (size <= 8) return RankTree::Star(size);
  Topology topology;
  for (int rank = 0; rank < size; ++rank) topology.host_of.push_back(rank / 8);
  return RankTree::Over(topology, 8);
}

class Job final : private LaneOutcome {
 public:
  explicit Job(const SimulationOptions& options)
      : options_(Filled(options)),
        dice_(options_.seed),
        tree_(options_.is_plain ? LargeTree(options_.ranks) : RandomTree(options_.ranks, dice_)),
        fault_(options_.has_faults ? dice_.OneOf(kFaults) : Fault::kNone),
        program_(Program::Random({options_.ranks, options_.tensors, options_.rounds,
                                  options_.backends, options_.is_plain, fault_ != Fault::kSilence},
                                 dice_)),
        codecs_(MakeCodecSet()),
        router_(MakeRouter()),
        network_(time_, dice_, tree_, NetworkOptions(), [this](int rank) { at(rank).OnArrival(); }),
        lanes_(time_, dice_, LaneOptions(), *this),
        world_{time_,    dice_,
               network_, lanes_,
               tree_,    program_,
               router_,  *codecs_,
               {},       {},
               {},       {},
               false,    [this](const std::string& what) { Note(what); }} {
    SetOptions();
    for (int rank = 0; rank < options_.ranks; ++rank) {
      const bool is_slow = !options_.is_plain && dice_.OneIn(6);
      ranks_.push_back(std::make_unique<SimulatedRank>(
          world_, rank,
          options_.is_plain
              ? Caller::Options{rank, options_.ranks, dice_.OneOf({0, 50, 500}), kBatchMax,
                                kOpenMax}
              : Caller::Options{rank, options_.ranks, dice_.OneOf({0, 50, 500, 20'000}),
                                dice_.Between(1, 8)},
          is_slow ? 5000 : 20));
    }
    PlanFault();
    PlanProposals();
  }

  SimulationResult Run() {
    const Deadline end = time_.Now() + kPatience;
    for (auto& rank : ranks_) rank->Begin();
    while (violation_.empty() && IsUnderWay() && time_.has_events() && time_.next() < end)
      time_.RunNext();
    if (violation_.empty()) CheckEnd();
    SimulationResult result{Name(fault_), violation_, time_.happened(), network_.messages()};
    for (auto& rank : ranks_) {
      result.submitted += rank->caller().submitted();
      result.has_failed |= rank->has_ended() && rank->core().has_failed();
    }
    result.seconds = std::chrono::duration<double>(time_.Now() - (end - kPatience)).count();
    return result;
  }

 private:
  static SimulationOptions Filled(SimulationOptions options) {
    Dice dice(options.seed ^ 0x5eed);
    if (options.ranks == 0) options.ranks = dice.Between(2, 8);
    if (options.tensors == 0) options.tensors = dice.Between(1, 16);
    options.is_plain = options.is_plain || options.ranks > kManyRanks;
    if (options.rounds == 0) options.rounds = options.is_plain ? 1 : dice.Between(1, 4);
    if (options.backends == 0) options.backends = options.is_plain ? 1 : dice.OneOf({1, 1, 2, 3});
    return options;
  }

  Router MakeRouter() const {
    RouterOptions router;
    router.topology.host_of.assign(static_cast<size_t>(options_.ranks), 0);
    router.others = options_.backends - 1;
    return Router(std::move(router));
  }
  VirtualNetwork::Options NetworkOptions() {
    return {dice_.OneOf({1, 200, 5000}), dice_.OneOf({100, 5000, 200'000})};
  }
  VirtualLanes::Options LaneOptions() {
    lane_count_ = dice_.Between(1, 3);
    return {options_.ranks, lane_count_ * options_.backends, dice_.OneOf({1, 300, 30'000}),
            dice_.OneOf({100, 5000, 200'000})};
  }

  void SetOptions() {
    world_.engine.lanes = lane_count_;
    world_.classes.lanes_started = lane_count_;
    world_.classes.names.resize(static_cast<size_t>(options_.backends));
    world_.classes.class_of = [this](const ScheduledTensor& tensor, int64_t bytes) {
      return router_.BackendOf(tensor, bytes, tensor.is_of_all);
    };
    world_.engine.stall_warning_ms = dice_.OneOf({200, 1000, 10'000});
    world_.engine.inline_bytes = dice_.OneOf({0, 64});
    world_.limits = {dice_.OneOf({64, 1000, 4 << 20}), dice_.OneOf({0, 2000, 64 << 20}),
                     dice_.OneOf({0, 0, 500, 5000}), dice_.Between(1, lane_count_)};
    // Thousands of ranks are there for their number: cuts of 64 bytes would multiply the buckets.
    if (options_.is_plain) world_.limits = {.lanes = lane_count_};
    world_.is_fifo = dice_.OneIn(3);
    world_.controller.cache_capacity = options_.cache_capacity > 0
                                           ? options_.cache_capacity
                                           : static_cast<size_t>(dice_.OneOf({1, 3, 1 << 14}));
    world_.controller.cache_capacity = std::min(
        world_.controller.cache_capacity, kRememberedMax / static_cast<size_t>(options_.ranks));
    world_.controller.stall_warning_ms = world_.engine.stall_warning_ms;
    world_.controller.stall_abort_ms = fault_ == Fault::kSilence ? kStallAbortMs : 0;
    world_.controller.announces_credit = world_.limits.credit_bytes > 0 || dice_.OneIn(2);
  }

  SimulatedRank& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int AnyRank() { return dice_.Below(options_.ranks); }
  void Note(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  // LaneOutcome
  void OnBegun(int rank, const BucketJob& job) override { at(rank).OnBegun(job); }
  void OnDone(int rank, BucketJob job, const Status& status) override {
    at(rank).OnDone(std::move(job), status);
  }
  void OnSuspicion(int rank, const Status& suspicion) override { at(rank).OnSuspicion(suspicion); }
  void OnViolation(const std::string& what) override { Note(what); }

  void PlanFault();
  void PlanProposals();
  void Happen();
  void Kill(int rank);
  bool IsUnderWay() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return !rank->is_dead() && !rank->has_ended(); });
  }
  void CheckEnd();
  void CheckEnd(const SimulatedRank& rank, int number);
  void CheckSameBuckets();

  const SimulationOptions options_;
  Dice dice_;
  VirtualTime time_;
  const RankTree tree_;
  const Fault fault_;
  const Program program_;
  const std::unique_ptr<CodecSet> codecs_;
  const Router router_;
  int lane_count_ = 1;
  VirtualNetwork network_;
  VirtualLanes lanes_;
  SimulatedWorld world_;
  std::vector<std::unique_ptr<SimulatedRank>> ranks_;
  std::set<int> culprits_;  // whom an error may name
  std::string violation_;
};

// At a moment when the job is young, or in the middle of things, or about to stop.
void Job::PlanFault() {
  if (fault_ == Fault::kNone) return;
  time_.In(dice_.MicrosBelow(dice_.OneOf({300, 3000, 30'000, 300'000})), [this] { Happen(); });
}

void Job::Kill(int rank) {
  culprits_.insert(rank);
  at(rank).Die();
}

void Job::Happen() {
  const int rank = AnyRank();
  const int other =
      options_.ranks == 1 ? rank : (rank + 1 + dice_.Below(options_.ranks - 1)) % options_.ranks;
  const int child = std::max(rank, 1) % options_.ranks;
  switch (fault_) {
    case Fault::kNone:
      return;
    case Fault::kKill:
      return Kill(rank);
    case Fault::kKillTwo:
      Kill(rank);
      time_.In(dice_.MicrosBelow(1000), [this, other] { Kill(other); });
      return;
    case Fault::kCut:
      if (child == 0) return;
      culprits_ = {child, tree_.parent(child)};
      return network_.Cut(child, tree_.parent(child));
    case Fault::kFreeze:
      at(rank).Freeze(time_.Now() + milliseconds(dice_.Below(4000)));
      return at(other).Freeze(time_.Now() + milliseconds(dice_.Below(400)));
    case Fault::kSilence:
      culprits_.insert(rank);
      // Whoever leaves something out may be missed for it, because it cannot join without that
      // rank.
      for (int each = 0; each < options_.ranks; ++each)
        if (program_.is_joiner[static_cast<size_t>(each)]) culprits_.insert(each);
      return at(rank).FallSilent();
    case Fault::kAbort:
      culprits_.insert(rank);
      return at(rank).Abort();
    case Fault::kHold: {
      if (child == 0) return;
      const Deadline until = time_.Now() + milliseconds(dice_.Below(3000));
      const bool is_up = dice_.OneIn(2);
      return network_.Hold(is_up ? child : tree_.parent(child), is_up ? tree_.parent(child) : child,
                           until);
    }
  }
}

void Job::PlanProposals() {
  if (options_.is_plain || !dice_.OneIn(4)) return;
  for (int i = dice_.Below(4); i >= 0; --i) {
    const Tunables tunables{dice_.OneOf({-1, 40, 4000}), dice_.OneOf({-1, 0, 3000}),
                            dice_.OneOf({-1, 0, 700}), dice_.Between(1, lane_count_)};
    time_.In(dice_.MicrosBelow(20'000), [this, tunables] { at(0).Propose(tunables); });
  }
}

void Job::CheckEnd() {
  // Nobody misses what the silent rank has left undone: the others wait in Stop or in join, for as
  // long as their callers want.
  const bool is_missed = std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    return rank->has_ended() || rank->caller().waits_for_tensor();
  });
  if (fault_ == Fault::kSilence && !is_missed) return;
  std::string stuck;
  for (const auto& rank : ranks_)
    if (!rank->is_dead() && !rank->has_ended()) stuck += "\n" + rank->Describe();
  if (!stuck.empty()) return Note("not every rank is through" + stuck);
  for (int rank = 0; rank < options_.ranks && violation_.empty(); ++rank) CheckEnd(at(rank), rank);
  if (violation_.empty()) CheckSameBuckets();
}

void Job::CheckEnd(const SimulatedRank& rank, int number) {
  if (rank.is_dead()) return;
  if (!rank.core().has_failed()) return;
  const Status& why = rank.core().end();
  const std::string who = "rank " + std::to_string(number) + " ended with " + why.ToString();
  if (culprits_.empty()) return Note(who + ", and nobody is to blame");
  if (!culprits_.contains(why.culprit())) {
    Note(who + ", whose culprit is " + std::to_string(why.culprit()));
  }
}

// Ranks that have stopped in order have issued the same, whether they took part in it or not.
void Job::CheckSameBuckets() {
  const SimulatedRank* first = nullptr;
  for (const auto& rank : ranks_) {
    if (rank->is_dead() || rank->core().has_failed()) continue;
    if (first == nullptr) first = rank.get();
    if (rank->core().issued() == first->core().issued() &&
        rank->core().chain() == first->core().chain()) {
      continue;
    }
    Note(std::to_string(rank->core().issued()) + " buckets on one rank and " +
         std::to_string(first->core().issued()) + " on another, or different ones");
  }
}

}  // namespace

SimulationResult Simulate(const SimulationOptions& options) { return Job(options).Run(); }

}  // namespace rabit::testing

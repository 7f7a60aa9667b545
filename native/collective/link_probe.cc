#include "collective/link_probe.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "arithmetic/reduce.h"
#include "collective/algorithms.h"
#include "collective/barrier.h"
#include "collective/broadcast.h"

namespace rabit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kVersion = 1;
constexpr int64_t kSmallBytes = 4 << 10;
constexpr int64_t kTinyBytes = 1 << 10;  // the same over a slow link
constexpr int64_t kMiddleBytes = 256 << 10;
constexpr int64_t kLargeBytes = 1 << 20;
constexpr int kRoundsMax = 15;  // of each pattern
constexpr int kReductions = 9;
constexpr double kTurnMicros = 600;  // of larger operations, back to back
constexpr int kSmallRepeats = 6;     // back to back; one operation is too short to be timed
constexpr double kMessageShareMin = 0.3;
constexpr double kLatencyShareMin = 0.5;  // of a small operation; the rest are its bytes
constexpr double kMicrosMin = 0.02;       // differences below are noise

enum Pattern : int64_t { kRecursiveDoubling, kGatherAll, kHalvingDoubling, kDirect, kEnd };

// What all ranks do next.
struct Round {
  uint64_t version = kVersion;
  int64_t pattern = kEnd;
  int64_t bytes = 0;
  int64_t repeats = 1;
};

template <typename T>
Bytes BytesOf(T& value) {
  return {reinterpret_cast<std::byte*>(&value), sizeof value};
}

int RepeatsFor(double micros) {
  return std::clamp(static_cast<int>(kTurnMicros / std::max(micros, 1.0)), 1, kSmallRepeats);
}

double Median(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Prober {
 public:
  Prober(const CollectiveCall& world, const CollectiveCall& group, const LinkModel& start,
         const LinkProbe& probe)
      : world_(world),
        group_(group),
        probe_(probe),
        end_(Clock::now() + probe.budget),
        link_(start) {}

  Result<LinkModel> Lead();
  Result<LinkModel> Follow();

 private:
  // Every collective has tags of its own.
  CollectiveCall Next(const CollectiveCall& call) {
    return {call.transport, call.tag + (++steps_ << kTagStepBits), call.deadline, call.scratch};
  }
  Status Tell(Bytes what) {
    return Broadcast(Next(world_), what, 0, BroadcastAlgorithm::kBinomial);
  }
  Status Play(const Round& round);
  float* Memory();
  // Microseconds of one operation each, medians of rounds in which the patterns take turns.
  template <size_t count>
  Result<std::array<double, count>> Time(const std::array<Pattern, count>& patterns, int64_t bytes,
                                         int repeats, double budget_share);
  double LeftMicros() const {
    return std::chrono::duration<double, std::micro>(end_ - Clock::now()).count();
  }
  Status Measure();
  void MeasureReduction();
  void FitLatency(double doubling_us, double gather_us, int64_t bytes);
  void FitMessages(double direct_us, double halving_us, int64_t bytes);
  void FitBytes(double halving_us, int64_t bytes);

  const CollectiveCall& world_;
  const CollectiveCall& group_;
  const LinkProbe& probe_;
  const Clock::time_point end_;
  LinkModel link_;
  uint64_t steps_ = 0;
  std::vector<float> memory_;  // empty until something is measured
};

float* Prober::Memory() {
  memory_.resize(static_cast<size_t>(kLargeBytes / 4));
  return memory_.data();
}

Status Prober::Play(const Round& round) {
  const AllreduceArgs args{{Memory(), round.bytes / 4, DType::kFloat32, {}}, ReduceOp::kMax, {}};
  constexpr std::array kRun = {&RunRecursiveDoubling, &RunGatherAll, &RunHalvingDoubling,
                               &RunDirect};
  for (int64_t i = 0; i < round.repeats; ++i) {
    const CollectiveCall call = Next(group_);
    if (group_.size() == 1) continue;
    RABIT_RETURN_IF_ERROR(kRun[static_cast<size_t>(round.pattern)](call, args));
  }
  return Status();
}

template <size_t count>
Result<std::array<double, count>> Prober::Time(const std::array<Pattern, count>& patterns,
                                               int64_t bytes, int repeats, double budget_share) {
  std::array<std::vector<double>, count> micros;
  const double stop_at = LeftMicros() * (1 - budget_share);
  // The first round warms up.
  for (int k = 0; k <= kRoundsMax && (k < 2 || LeftMicros() > stop_at); ++k) {
    for (size_t i = 0; i < count; ++i) {
      Round round{kVersion, patterns[i], bytes, repeats};
      RABIT_RETURN_IF_ERROR(Tell(BytesOf(round)));
      RABIT_RETURN_IF_ERROR(Barrier(Next(world_)));
      const auto start = Clock::now();
      RABIT_RETURN_IF_ERROR(Play(round));
      const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
      if (k > 0) micros[i].push_back(taken.count() / repeats);
    }
  }
  std::array<double, count> medians;
  for (size_t i = 0; i < count; ++i) medians[i] = Median(micros[i]);
  return medians;
}

Result<LinkModel> Prober::Follow() {
  for (;;) {
    Round round;
    RABIT_RETURN_IF_ERROR(Tell(BytesOf(round)));
    if (round.version != kVersion || round.pattern < 0 || round.pattern > kEnd || round.bytes < 0 ||
        round.bytes > kLargeBytes) {
      return Internal("rank " + std::to_string(world_.rank()) +
                      ": cannot read how rank 0 measures the links (version " +
                      std::to_string(round.version) + ", here " + std::to_string(kVersion) +
                      "); install one version on all ranks");
    }
    if (round.pattern == kEnd) break;
    RABIT_RETURN_IF_ERROR(Barrier(Next(world_)));
    RABIT_RETURN_IF_ERROR(Play(round));
  }
  RABIT_RETURN_IF_ERROR(Tell(BytesOf(link_)));
  return link_;
}

Result<LinkModel> Prober::Lead() {
  if (probe_.budget.count() > 0 && group_.size() > 1) {
    link_.is_crowded = probe_.ranks_per_core > 1;
    link_.is_measured = true;
    MeasureReduction();
    RABIT_RETURN_IF_ERROR(Measure());
  }
  Round end;
  RABIT_RETURN_IF_ERROR(Tell(BytesOf(end)));
  RABIT_RETURN_IF_ERROR(Tell(BytesOf(link_)));
  return link_;
}

// Small operations come last, when all ranks are awake and their memory is warm.
Status Prober::Measure() {
  // A slow link has time for small probes only; one says how slow it is.
  RABIT_ASSIGN_OR_RETURN(const auto first, Time<1>({kHalvingDoubling}, kMiddleBytes / 16, 1, 0.0));
  const int64_t middle = 16 * first[0] < LeftMicros() / 12 ? kMiddleBytes : kMiddleBytes / 4;
  const double growth_to_middle = static_cast<double>(middle) / (kMiddleBytes / 16);
  const double growth = static_cast<double>(kLargeBytes) / static_cast<double>(middle);
  RABIT_ASSIGN_OR_RETURN(
      const auto at_middle,
      Time<2>({kDirect, kHalvingDoubling}, middle, RepeatsFor(first[0] * growth_to_middle), 0.45));
  double halving_us = at_middle[1];
  int64_t bytes = middle;
  if (3 * growth * at_middle[1] < LeftMicros()) {
    bytes = kLargeBytes;
    RABIT_ASSIGN_OR_RETURN(const auto at_large, Time<1>({kHalvingDoubling}, bytes,
                                                        RepeatsFor(growth * at_middle[1]), 0.5));
    halving_us = at_large[0];
  }
  const int64_t small = middle == kMiddleBytes ? kSmallBytes : kTinyBytes;
  RABIT_ASSIGN_OR_RETURN(const auto at_small,
                         Time<2>({kRecursiveDoubling, kGatherAll}, small, kSmallRepeats, 1.0));
  // The bytes are known roughly without the latency and the messages, and well with them.
  link_.latency_us = 0;
  FitBytes(halving_us, bytes);
  FitLatency(at_small[0], at_small[1], small);
  FitBytes(halving_us, bytes);
  FitMessages(at_middle[0], at_middle[1], middle);
  FitBytes(halving_us, bytes);
  return Status();
}

// What the bytes leave of the time.  They are the same as in the costs that are compared later, so
// that of the two algorithms the one is chosen at this size that was faster.
void Prober::FitLatency(double doubling_us, double gather_us, int64_t bytes) {
  const LinkModel unit{.latency_us = 1,
                       .fan_us = 0,
                       .message_us = 0,
                       .bytes_per_us = 1e18,
                       .reduce_bytes_per_us = 1e18};
  LinkModel free = link_;
  free.latency_us = free.fan_us = free.message_us = 0;
  const int size = group_.size();
  const auto without_bytes = [&](double taken_us, double bytes_us) {
    return std::max(taken_us - bytes_us, kLatencyShareMin * taken_us);
  };
  link_.latency_us = std::max(
      kMicrosMin, without_bytes(doubling_us, RecursiveDoublingCostMicros(free, size, bytes)) /
                      RecursiveDoublingCostMicros(unit, size, bytes));
  if (size <= 2) return;
  const double gather_steps = without_bytes(gather_us, GatherAllCostMicros(free, size, bytes));
  link_.fan_us = std::max(kMicrosMin, (gather_steps - link_.latency_us) / (size - 2));
}

// What `direct` takes longer than its steps and bytes explain.
void Prober::FitMessages(double direct_us, double halving_us, int64_t bytes) {
  const LinkModel unit{.latency_us = 0,
                       .fan_us = 0,
                       .message_us = 1,
                       .bytes_per_us = 1e18,
                       .reduce_bytes_per_us = 1e18};
  const int size = group_.size();
  const double further =
      DirectCostMicros(unit, size, bytes) - HalvingDoublingCostMicros(unit, size, bytes);
  LinkModel free = link_;
  free.message_us = 0;
  const double rest = (direct_us - DirectCostMicros(free, size, bytes)) -
                      (halving_us - HalvingDoublingCostMicros(free, size, bytes));
  // Small differences of large figures: a message costs some of what one more peer does, and no
  // more than a whole latency.
  const double least = size > 2 ? kMessageShareMin * link_.fan_us : kMicrosMin;
  if (further > 0) {
    link_.message_us =
        std::clamp(rest / further, std::min(least, link_.latency_us), link_.latency_us);
  }
}

// What latency and arithmetic leave of the time.
void Prober::FitBytes(double halving_us, int64_t bytes) {
  const LinkModel unit{.latency_us = 0,
                       .fan_us = 0,
                       .message_us = 0,
                       .bytes_per_us = 1,
                       .reduce_bytes_per_us = 1e18};
  const double moved = HalvingDoublingCostMicros(unit, group_.size(), bytes);
  LinkModel free = link_;
  free.bytes_per_us = 1e18;
  const double rest = halving_us - HalvingDoublingCostMicros(free, group_.size(), bytes);
  link_.bytes_per_us = moved / std::max(rest, 0.1 * halving_us);
}

void Prober::MeasureReduction() {
  constexpr int64_t kBytes = kLargeBytes / 2;  // not in the fastest cache
  std::byte* const mine = reinterpret_cast<std::byte*>(Memory());
  const std::array<const std::byte*, 2> inputs{mine, mine + kBytes};
  std::vector<double> micros;
  for (int i = 0; i < kReductions; ++i) {
    const auto start = Clock::now();
    Reduce(ReduceOp::kMax, DType::kFloat32, inputs, mine, kBytes / 4);
    micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  const double crowd = std::max(1.0, probe_.ranks_per_core);
  link_.reduce_bytes_per_us = static_cast<double>(kBytes) / std::max(0.1, Median(micros)) / crowd;
}

}  // namespace

Result<LinkModel> MeasureLink(const CollectiveCall& world, const CollectiveCall& group,
                              const LinkModel& start, const LinkProbe& probe) {
  if (world.size() == 1) return start;
  Prober prober(world, group, start, probe);
  return world.rank() == 0 ? prober.Lead() : prober.Follow();
}

}  // namespace rabit

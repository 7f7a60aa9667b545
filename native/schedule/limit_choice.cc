#include "schedule/limit_choice.h"

#include <algorithm>
#include <cmath>

namespace rabit {
namespace {

// What an operation costs beside its bytes is a fraction of its latency, because another one runs
// beside it: a quarter to a tenth in measurements.  Its square root counts, so a rough one will do.
constexpr double kSerialShare = 0.125;
constexpr double kOverheadNsMin = 20'000;
constexpr double kOverheadNsMax = 250'000;  // there may be no short bucket
// A round with less communication than this has nothing to gain.
constexpr double kWorthwhileNs = 20e6;
constexpr int64_t kPartitionBytesMin = 64 << 10;
constexpr int64_t kPartitionBytesMax = 16 << 20;
// One partition that is exchanged, and one behind it while word of the credit travels.
constexpr int64_t kPartitionsInFlight = 2;
// Smaller differences are not worth a change.
constexpr double kHysteresis = 1.5;
// A job that never repeats a key has rounds, too.
constexpr size_t kKeysMax = 1 << 16;

}  // namespace

bool LimitChoice::OnAgreed(size_t key, int64_t bytes, int32_t priority) {
  // A key is a cached id and so below the cache's capacity, which bounds this.
  if (key >= last_round_.size()) last_round_.resize(key + 1);
  const bool is_new_round = last_round_[key] == round_ || keys_ >= kKeysMax;
  if (is_new_round) {
    round_bytes_ = bytes_;
    has_order_ = lowest_priority_ != highest_priority_;
    ++round_;
    keys_ = 0;
    bytes_ = 0;
    lowest_priority_ = highest_priority_ = priority;
  }
  last_round_[key] = round_;
  ++keys_;
  bytes_ += bytes;
  lowest_priority_ = std::min(lowest_priority_, priority);
  highest_priority_ = std::max(highest_priority_, priority);
  return is_new_round;
}

std::optional<ScheduleLimits> LimitChoice::OnRound(const LinkTotals& totals) {
  // After a pause the totals include what ran under somebody else's sizes, so one round is passed
  // over.
  if (is_stale_) {
    last_ = totals;
    is_stale_ = is_paused_;
    return std::nullopt;
  }
  const int64_t bytes = totals.bytes - last_.bytes;
  const int64_t took_ns = totals.communicating_ns - last_.communicating_ns;
  // Less than most of a round says little, as when its buckets are still on their way.
  if (bytes * 2 < round_bytes_ || bytes <= 0 || took_ns <= 0) return std::nullopt;
  last_ = totals;
  const double ns_per_byte = static_cast<double>(took_ns) / static_cast<double>(bytes);
  ns_per_byte_ = ns_per_byte_ == 0 ? ns_per_byte : (ns_per_byte_ + ns_per_byte) / 2;

  overhead_ns_ = std::clamp(kSerialShare * static_cast<double>(totals.shortest_ns), kOverheadNsMin,
                            kOverheadNsMax);
  const ScheduleLimits best = Best();
  const double ratio =
      static_cast<double>(best.partition_bytes) / static_cast<double>(chosen_.partition_bytes);
  const bool is_near = ratio < kHysteresis && ratio > 1 / kHysteresis;
  if (is_near && (best.credit_bytes == 0) == (chosen_.credit_bytes == 0)) return std::nullopt;
  chosen_ = best;
  return best;
}

ScheduleLimits LimitChoice::Resume() {
  is_paused_ = false;
  return chosen_;
}

// Without an order there is nothing urgent: then nothing is held back.
ScheduleLimits LimitChoice::Best() const {
  const auto round_bytes = static_cast<double>(round_bytes_);
  if (!has_order_ || round_bytes * ns_per_byte_ < kWorthwhileNs) return start_;
  const auto bytes = static_cast<int64_t>(std::sqrt(round_bytes * overhead_ns_ / ns_per_byte_));
  ScheduleLimits limits = start_;
  limits.partition_bytes = std::clamp(bytes, kPartitionBytesMin, kPartitionBytesMax) / 4096 * 4096;
  limits.fusion_bytes = std::min(start_.fusion_bytes, limits.partition_bytes);
  if (start_.credit_bytes == 0) limits.credit_bytes = kPartitionsInFlight * limits.partition_bytes;
  return limits;
}

}  // namespace rabit

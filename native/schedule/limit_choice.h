// LimitChoice: derives the sizes of partitions and of the credit window from what was measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/scheduler.h"

namespace rabit {

// Totals since the engine started.
struct LinkTotals {
  int64_t bytes = 0;             // of finished buckets
  int64_t communicating_ns = 0;  // while at least one lane communicated
  int64_t shortest_ns = 0;       // the quickest bucket: about the latency of an operation
};

// Partitions of p bytes cost S / p times the overhead of an operation, theta, and let what is
// urgent wait for about p bytes, at beta seconds each: the sum is least at p = sqrt(S theta /
// beta), and flat there, so that a factor of two is harmless.  S is what one round of the training
// loop reduces.  Knows no clock; rank 0's engine thread.
class LimitChoice {
 public:
  explicit LimitChoice(const ScheduleLimits& start) : start_(start), chosen_(start) {}

  // A tensor was agreed, named by `key`, a small number; true when that began a new round, because
  // the one under way held it already.
  bool OnAgreed(size_t key, int64_t bytes, int32_t priority);
  // After a round: other limits, if others are clearly better.
  std::optional<ScheduleLimits> OnRound(const LinkTotals& totals);

  // While paused it only watches, because the sizes are somebody else's.
  void Pause() { is_paused_ = is_stale_ = true; }
  // Chooses again; returns the limits that it had chosen.
  ScheduleLimits Resume();

  // What the last round told; 0 before.
  int64_t round_bytes() const { return round_bytes_; }
  double ns_per_byte() const { return ns_per_byte_; }

 private:
  ScheduleLimits Best() const;

  const ScheduleLimits start_;
  ScheduleLimits chosen_;
  bool is_paused_ = false;
  bool is_stale_ = false;  // the round had sizes that were not chosen here
  uint64_t round_ = 1;
  std::vector<uint64_t> last_round_;  // by key; 0: none yet
  size_t keys_ = 0;                   // of the round
  int64_t bytes_ = 0;                 // of the round
  int64_t round_bytes_ = 0;           // of the round before
  int32_t lowest_priority_ = INT32_MAX;
  int32_t highest_priority_ = INT32_MIN;
  bool has_order_ = false;
  LinkTotals last_;
  double ns_per_byte_ = 0;
  double overhead_ns_ = 0;  // of a bucket
};

}  // namespace rabit

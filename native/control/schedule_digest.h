// ScheduleDigest: what one rank has made of the agreements, so that rank 0 can compare the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"

namespace rabit {

// A rank whose exchange does not end asks for a comparison (Announcement::doubts).  The agreement
// that answers (Agreement::compares) is one point in the history of all ranks, at which each of
// them reports its digest (Controller::Compare).
//
// The scheduler is a replicated state machine: after the same agreement all ranks have issued the
// same buckets.  Where they have not (a setting that differs, a defect), messages of different
// content never match, and the exchange would wait for ever.
struct ScheduleDigest {
  // Something that this rank exchanges at the moment.
  struct Running {
    int32_t scope = BucketsOf(0);  // or the group of an ordered call
    uint64_t number = 0;           // of the bucket, or of the call within its group
    uint64_t hash = 0;             // of everything that must be equal on all ranks
    std::string what;              // "allreduce 't3' (sum float32[256], by ring)"
  };
  // Buckets of different lane classes have the same numbers.
  static constexpr int32_t BucketsOf(int32_t lane_class) { return -1 - lane_class; }

  uint64_t cycle = 0;   // of the agreement after which this is so
  uint64_t issued = 0;  // buckets
  uint64_t chain = 0;   // of the contents of all of them, in order
  std::vector<Running> running;

  // Not compared: for ranks that wait for each other (Coordinator::FindCircle).
  uint64_t submissions = 0;        // ever, on this rank
  bool are_callers_stuck = false;  // no thread does anything but wait for what is not agreed
};

// Replaces the content of `out`.
void Encode(const ScheduleDigest& digest, std::vector<std::byte>& out);
Result<ScheduleDigest> DecodeDigest(ConstBytes message);

// Collects the digests of one agreement.  Pure; whoever calls it serialises the calls.
class DigestRound {
 public:
  explicit DigestRound(int size) : digests_(static_cast<size_t>(size)) {}

  // kMismatch, with the odd rank as the culprit, when the last rank has reported and not all have
  // reported the same.  Digests of an older agreement than the newest are not looked at.
  Status Add(int rank, ScheduleDigest digest);

 private:
  Status Compare() const;

  std::vector<std::optional<ScheduleDigest>> digests_;  // by rank
  uint64_t cycle_ = 0;
  size_t count_ = 0;
};

}  // namespace rabit

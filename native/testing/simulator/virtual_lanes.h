// VirtualLanes: the lanes of all ranks, with a time per bucket in place of an exchange.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <string>
#include <vector>

#include "engine/bucket_job.h"
#include "testing/simulator/dice.h"
#include "testing/simulator/virtual_time.h"

namespace rabit::testing {

// What becomes of the buckets that lanes run.
class LaneOutcome {
 public:
  virtual ~LaneOutcome() = default;
  virtual void OnBegun(int rank, const BucketJob& job) = 0;
  // The bucket is through on `rank`; or what is left of it ends with that rank's own verdict.
  virtual void OnDone(int rank, BucketJob job, const Status& status) = 0;
  // A lane of `rank` waits for somebody who is gone.
  virtual void OnSuspicion(int rank, const Status& suspicion) = 0;
  // Ranks run different things under one number.
  virtual void OnViolation(const std::string& what) = 0;
};

// A lane runs one bucket at a time, in the order in which it got them; a bucket is through some
// time after it has begun on all of its ranks.  One thread.
class VirtualLanes {
 public:
  struct Options {
    int ranks = 1;
    int lanes = 1;
    int run_us_max = 300;      // of one bucket
    int notice_us_max = 5000;  // until a lane suspects who is gone
  };

  // All outlive it.
  VirtualLanes(VirtualTime& time, Dice& dice, const Options& options, LaneOutcome& outcome);

  void Push(int rank, BucketJob job);
  // `rank` is dead, or has closed its connections.
  void Lose(int rank);
  // The engine of `rank` has failed: its lanes end.
  void Abort(int rank, const Status& why);

 private:
  struct Exchange {  // of one bucket
    uint64_t hash = 0;
    std::vector<int> members;
    std::vector<int> begun;
  };
  struct Lane {
    std::deque<BucketJob> jobs;
    bool is_busy = false;
  };

  Lane& LaneOf(int rank, int lane) {
    return lanes_[static_cast<size_t>(rank * options_.lanes + lane)];
  }
  void Begin(int rank, int lane);
  void End(int rank, int lane);
  void SuspectLater(int rank, int gone);
  static std::vector<int> MembersOf(const BucketJob& job);

  VirtualTime& time_;
  Dice& dice_;
  const Options options_;
  LaneOutcome& outcome_;
  std::vector<Lane> lanes_;
  std::vector<bool> is_aborted_;
  std::set<int> gone_;
  std::map<std::pair<int, uint64_t>, Exchange> exchanges_;  // by lane and bucket; until it is through on all ranks
};

}  // namespace rabit::testing

// StuckWatch: notices exchanges that last, so that the ranks compare what they exchange.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/bytes.h"
#include "engine/done_counter.h"
#include "engine/running_work.h"

namespace rabit {

// A slow link is nothing to worry about, and a comparison costs a message of each rank: the first
// one comes after a second without an end, the next after twice the time each.  Engine core
// only.
class StuckWatch {
 public:
  // The references outlive it.  Ordered calls run at `ordered_place`; `has_ordered` tells whether
  // there may be any: whoever makes the first one sets it, the watch clears it when there are none
  // any more.
  StuckWatch(const DoneCounter& done, const RunningWork& running, int32_t ordered_place,
             std::atomic<bool>& has_ordered)
      : done_(done), running_(running), ordered_place_(ordered_place), has_ordered_(has_ordered) {}

  // True: it is time to compare.
  bool Look(const BucketCounts& issued, Deadline now);
  // When to look again.
  Deadline next() const;
  // The ranks have just compared: nobody else needs to ask for it.
  void OnCompared(Deadline now);

 private:
  struct Watch {
    uint64_t seen = 0;  // buckets done in a row, or ordered calls begun
    int doubts = 0;     // since that has changed
    Deadline next = Deadline::max();
  };

  bool LookAtBuckets(Watch& watch, uint64_t issued, uint64_t done, Deadline now);
  bool LookAtOrdered(Deadline now);
  static bool Doubt(Watch& watch, Deadline now);  // true

  const DoneCounter& done_;
  const RunningWork& running_;
  const int32_t ordered_place_;
  std::atomic<bool>& has_ordered_;
  std::array<Watch, kLaneClassesMax> buckets_;  // by lane class
  Watch ordered_;
};

}  // namespace rabit

// StuckWatch: notices exchanges that last, so that the ranks compare what they exchange.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "engine/engine_state.h"

namespace rabit {

// A slow link is nothing to worry about, and a comparison costs a message of each rank: the first
// one comes after a second without an end, the next after twice the time each.  Engine thread only
// (or who does its work; see EngineThread::Drive).
class StuckWatch {
 public:
  // `state` outlives it.
  explicit StuckWatch(EngineState& state) : state_(state) {}

  // True: it is time to compare.
  bool Look(uint64_t issued, Deadline now);
  // When to look again.
  Deadline next() const { return std::min(buckets_.next, ordered_.next); }
  // The ranks have just compared: nobody else needs to ask for it.
  void OnCompared(Deadline now);

 private:
  struct Watch {
    uint64_t seen = 0;  // buckets done in a row, or ordered calls begun
    int doubts = 0;     // since that has changed
    Deadline next = Deadline::max();
  };

  bool LookAtBuckets(uint64_t issued, Deadline now);
  bool LookAtOrdered(Deadline now);
  static bool Doubt(Watch& watch, Deadline now);  // true

  EngineState& state_;
  Watch buckets_;
  Watch ordered_;
};

}  // namespace rabit

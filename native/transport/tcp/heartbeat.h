// Heartbeat: when signs of life are due, and whether this process may accuse another of silence.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/bytes.h"

namespace rabit {

// Beats are sent to all peers at once.  Whoever was silent for the whole timeout is looked at when its
// time is over, not at the beat that follows, so that nobody is found late.  A process that was held up
// itself, stopped for instance, has not read what others sent: for one timeout after that, silence
// proves nothing.  One thread.
class Heartbeat {
 public:
  // Zero: no beats.
  Heartbeat(std::chrono::milliseconds timeout, Deadline now)
      : timeout_(timeout), interval_(timeout / kBeatsPerTimeout), due_(now + interval_), look_(due_) {}

  // Whether a beat is due; the next one is then due an interval later.
  bool IsDue(Deadline now) {
    if (timeout_.count() == 0 || now < due_) return false;
    if (now > due_ + 2 * interval_) unsteady_until_ = now + timeout_;
    due_ = now + interval_;
    return true;
  }
  // Whether peers are to be looked at: a beat was due, or the time of one of them is over.  Expect
  // then says of each when its time is over.
  bool MustLook(Deadline now) {
    if (timeout_.count() == 0 || now < look_) return false;
    look_ = due_;
    return true;
  }
  void Expect(Deadline end) { look_ = std::min(look_, end); }
  bool IsSteady(Deadline now) const { return now >= unsteady_until_; }
  Deadline next(Deadline now) const {
    return timeout_.count() == 0 ? now + std::chrono::hours(1) : look_;
  }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // Of a living peer.  Whoever falls silent is known to all within the timeout, of which it takes a
  // part to tell them.
  std::chrono::milliseconds silence_max() const {
    return timeout_ - std::min(timeout_ / kPartsToTell, kTimeToTellMax);
  }

 private:
  static constexpr int kBeatsPerTimeout = 8;
  static constexpr int kPartsToTell = 16;
  static constexpr std::chrono::milliseconds kTimeToTellMax{200};

  const std::chrono::milliseconds timeout_;
  const std::chrono::nanoseconds interval_;
  Deadline due_;
  Deadline look_;  // not after due_
  Deadline unsteady_until_{};
};

}  // namespace rabit

#include "engine/stuck_watch.h"

#include <algorithm>

namespace rabit {
namespace {

constexpr auto kFirstDoubt = std::chrono::seconds(1);
constexpr int kDoublingsMax = 5;

}  // namespace

bool StuckWatch::Look(uint64_t issued, Deadline now) {
  const bool is_bucket_stuck = LookAtBuckets(issued, now);
  const bool is_call_stuck = LookAtOrdered(now);
  return is_bucket_stuck || is_call_stuck;
}

bool StuckWatch::LookAtBuckets(uint64_t issued, Deadline now) {
  const uint64_t done = done_.count();
  if (done == issued) {
    buckets_.next = Deadline::max();
    return false;
  }
  if (buckets_.next == Deadline::max() || done != buckets_.seen) {
    buckets_ = {done, 0, now + kFirstDoubt};
    return false;
  }
  return now >= buckets_.next && Doubt(buckets_, now);
}

// Calls run on their own threads and wake nobody; the first after a pause has set has_ordered.
bool StuckWatch::LookAtOrdered(Deadline now) {
  if (!has_ordered_.load()) return false;
  if (ordered_.next == Deadline::max()) ordered_.next = now + kFirstDoubt;
  if (now < ordered_.next) return false;
  // Before the look: a call that begins after it sets it again, and wakes this thread.
  has_ordered_.store(false);
  const RunningWork::Progress progress = running_.ProgressAt(ordered_place_);
  const bool has_moved = progress.begun != ordered_.seen;
  if (has_moved || progress.is_active) has_ordered_.store(true);
  if (has_moved || !progress.is_active) {
    ordered_ = {progress.begun, 0, has_moved ? now + kFirstDoubt : Deadline::max()};
    return false;
  }
  return Doubt(ordered_, now);
}

bool StuckWatch::Doubt(Watch& watch, Deadline now) {
  watch.doubts = std::min(watch.doubts + 1, kDoublingsMax);
  watch.next = now + kFirstDoubt * (1 << watch.doubts);
  return true;
}

void StuckWatch::OnCompared(Deadline now) {
  const Deadline soon = now + kFirstDoubt;
  for (Watch* watch : {&buckets_, &ordered_}) {
    if (watch->next != Deadline::max()) watch->next = std::max(watch->next, soon);
  }
}

}  // namespace rabit

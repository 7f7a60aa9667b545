#include "engine/stuck_watch.h"

#include <algorithm>

namespace rabit {
namespace {

constexpr auto kFirstDoubt = std::chrono::seconds(1);
constexpr int kDoublingsMax = 5;

}  // namespace

bool StuckWatch::Look(const BucketCounts& issued, Deadline now) {
  // The lanes count on while this runs; a value that is old by one costs a second of patience at
  // most.
  const BucketCounts done = done_.counts();
  bool is_stuck = LookAtOrdered(now);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    is_stuck |= LookAtBuckets(buckets_[i], issued.of[i], done.of[i], now);
  }
  return is_stuck;
}

Deadline StuckWatch::next() const {
  Deadline next = ordered_.next;
  for (const Watch& watch : buckets_) next = std::min(next, watch.next);
  return next;
}

bool StuckWatch::LookAtBuckets(Watch& watch, uint64_t issued, uint64_t done, Deadline now) {
  if (done == issued) {
    watch.next = Deadline::max();
    return false;
  }
  if (watch.next == Deadline::max() || done != watch.seen) {
    // Any bucket that ends shows that the class moves, however long the one at its head takes.
    watch = {done, 0, now + kFirstDoubt};
    return false;
  }
  return now >= watch.next && Doubt(watch, now);
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
  // The flag keeps the watch going: a call that runs longer than a look wakes nobody by itself.
  if (has_moved || progress.is_active) has_ordered_.store(true);
  if (has_moved || !progress.is_active) {
    ordered_ = {progress.begun, 0, has_moved ? now + kFirstDoubt : Deadline::max()};
    return false;
  }
  return Doubt(ordered_, now);
}

bool StuckWatch::Doubt(Watch& watch, Deadline now) {
  watch.doubts = std::min(watch.doubts + 1, kDoublingsMax);
  // Each doubt makes all ranks compare their work; with ever longer pauses a slow network is not
  // asked more than it works.
  watch.next = now + kFirstDoubt * (1 << watch.doubts);
  return true;
}

void StuckWatch::OnCompared(Deadline now) {
  const Deadline soon = now + kFirstDoubt;
  const auto put_off = [soon](Watch& watch) {
    // Another rank's doubt has just been answered for all, so this rank need not ask the same
    // again.
    if (watch.next != Deadline::max()) watch.next = std::max(watch.next, soon);
  };
  for (Watch& watch : buckets_) put_off(watch);
  put_off(ordered_);
}

}  // namespace rabit

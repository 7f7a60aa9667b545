// Doorbell: how a thread sleeps until another process, or another thread of this one, has news.
//
// The word lies in shared memory.  A waiter announces itself in `sleepers`, looks once more, and
// only then sleeps; a ringer publishes its news and only then reads `sleepers`.  All four accesses
// are sequentially consistent, so at least one of the two sees the other (Dekker).  A process that
// dies while it is counted in `sleepers` costs its peers a useless system call, nothing else.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/bytes.h"
#include "base/core_place.h"

namespace rabit {

struct alignas(64) Doorbell {
  std::atomic<uint32_t> sequence;
  std::atomic<uint32_t> sleepers;
  CorePlace waiter;  // of the thread that waited here last
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(Doorbell) == 64);

// Wakes every sleeper; costs one load when nobody sleeps.  The news must have been published by a
// sequentially consistent store.
void Ring(Doorbell& bell);
// Wakes every sleeper, and makes a thread that is about to sleep return at once.
void RingAlways(Doorbell& bell);

// Sleeps until `sequence` differs from `seen` or the deadline passes; may return early.
void SleepUntilRung(Doorbell& bell, uint32_t seen, Deadline deadline);

}  // namespace rabit

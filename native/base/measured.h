// Thresholds that came out of a measurement, with the machine and the day.  On other machines the
// best value is another one, and this one is near enough; measure again before you change it.
//
// "2 cores": a virtual machine of two AVX-512 cores that share a last-level cache, ranks on them,
// TCP over loopback.  The tables are in docs/performance.md; `make bench` prints them on another
// machine.
#pragma once

#include <cstdint>

namespace rabit {

// ---- Which algorithm (route/router.cc) ----------------------------------------------------------

// Below this the extra steps of a hierarchy cost more than the slow links save.
// 2 cores as two hosts, 2026-11-22.
inline constexpr int64_t kHierarchicalBytesMin = 64 << 10;
// From parts of this size on, senders that meet at one receiver overflow the queue of its link, and
// what TCP then repeats costs more than the steps of a ring, where every link has one sender.
// Shaped links, 2026-11-22.
inline constexpr int64_t kRingPartBytesMin = 16 << 10;
// Up to here a message to everybody is cheaper than more steps.  2 cores, 4 ranks, 2026-11-22.
inline constexpr int64_t kRingAllgatherBytesMin = 1 << 20;
inline constexpr int64_t kChainBroadcastBytesMin = 128 << 10;
// What is joined of one host: few enough to stay in the caches, enough to pay for an exchange
// (docs/performance.md, "Joined tensors").  2 cores, 2026-11-27.
inline constexpr int64_t kJoinedBytesMax = 2 << 20;
// Up to here one message from everybody to the root of a reduction beats sharing the work.
// 2 cores, 2026-11-21.
inline constexpr int64_t kSingleStepReduceBytesMax = 64 << 10;
// Above this the MPI library's forms that return at once lose to our own algorithms (they are
// written for overlap rather than speed): 1 MiB on two ranks takes them twice as long.
// Open MPI 5, 2 cores, 2026-11-22.
inline constexpr int64_t kMpiReduceBytesMax = 128 << 10;

// ---- What is negotiated with its data (route/carried_limit.cc) ----------------------------------

// At which rank 0 copies data into and out of the messages of a negotiation, where an exchange has
// the tensors themselves; checksums and the reduction of all inputs are in it.  2 cores,
// 2026-11-26.
inline constexpr double kCarriedBytesPerMicro = 3500;
// How much less it has to cost: probes at the start find larger latencies than exchanges in a row.
inline constexpr double kCarriedTimesCheaper = 2;
// Below this many ranks, what the ranks between add to every message's way is more than what they
// take off rank 0 (docs/performance.md, bench_control).  2 cores, 2026-11-21.
inline constexpr int kTreeRanksMin = 65;

// ---- Waits on sockets where ranks share cores (abi/connections.cc) -------------------------------

// TcpOptions::spin_bytes_max: calls of 64 to 256 KiB take 0.5 to 0.7 of the time of sleeping at
// once, and 4 MiB 1.25 times.  2 cores, 4 ranks, 2026-11-28.
inline constexpr int64_t kSharedCoreSpinBytesMax = 256 << 10;

// TcpOptions::stripe_bytes_min where a host has several interfaces: below it a message takes one of
// them.  At 100 Mbit/s 64 KiB take 5 ms, far more than a frame's overhead.  2 cores, 2026-11-28.
inline constexpr int64_t kInterfaceStripeBytesMin = 64 << 10;

// ---- Pieces (collective/, backend/ps) -----------------------------------------------------------

// What two ranks work on together stays in their caches below this size.  2 cores, 2026-11-25.
inline constexpr int64_t kCachedBytes = 1 << 20;
// halving_doubling works through larger buffers block by block, so that what was reduced is given
// back while it is in the cache.  2 cores, 2026-11-21.
inline constexpr int64_t kHalvingBlockBytes = 2 << 20;
// gather_all takes one step for each piece of this size.  2 cores, 2026-11-21.
inline constexpr int64_t kGatherAllPieceBytes = 64 << 10;
// Below some 1.6 Gbit/s several ranks that send to one at once fill what is in front of its link,
// and what does not fit is lost and sent again.  Shaped links, 2026-11-26.
inline constexpr double kPacedBytesPerMicro = 200;
inline constexpr int64_t kPacedPieceBytes = 16 << 10;
// Of one worker to a summation server: more than what TCP copies before it sends, and not much
// more.  2 cores and shaped links, 2026-11-23.
inline constexpr int64_t kPsChunkBytesMin = 32 << 10;
inline constexpr int64_t kPsChunkBytesMax = 96 << 10;

// ---- Transports ---------------------------------------------------------------------------------

// Larger frames of TCP are read when somebody wants them.  2 cores, 2026-11-21.
inline constexpr uint64_t kEagerFrameBytesMax = 16 << 10;
// Of a message through shared memory that is to stay in the cache; less than what is copied once.
// 2 cores, 2026-11-25.
inline constexpr int64_t kCachedMessageBytes = 64 << 10;
// Long enough to hide the system call of a single copy, short enough that the source is read, and
// the destination written, while other lanes still get their turn and a deadline is noticed in
// time.  2 cores, 2026-11-21.
inline constexpr uint64_t kPullBytes = 256 << 10;
// Shorter pieces are written through the caches: they gain little by a choice, and it would cost
// them two readings of the clock.  Cores without a common cache, 2026-11-27.
inline constexpr uint64_t kChosenWriteBytesMin = 4 << 10;

}  // namespace rabit

// What two cores take to pass bytes through a ring of shared memory that is written through the
// caches, past them, and as WriteChoice finds best.
// Usage: bench_ring_writes [core=first] [other_core=last] [rounds=9] [ring_bytes=1048576]
//
// Both cores write 8 MiB for the other one and read as much, in pieces of 64 KiB, as the shm
// transport does.  exchange: GB/s of each direction; write: microseconds of a piece, median;
// streamed: how many of the pieces were written past the caches.  The ways take turns within each
// round, and the median over the rounds is shown: a virtual machine's cores may come to share a
// cache, or no longer to, at any moment.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "base/streamed_copy.h"
#include "transport/shm/write_choice.h"

namespace rabit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytes = 8 << 20;
constexpr size_t kPieceBytes = 64 << 10;
constexpr std::array<const char*, 3> kWays = {"cached", "streamed", "chosen"};

// One direction; the ring itself follows.
struct alignas(64) Lane {
  alignas(64) std::atomic<size_t> written;
  alignas(64) std::atomic<size_t> read;
  alignas(64) std::atomic<size_t> arrived;  // at the barrier, by the writer
};

struct Sample {
  double exchange_gb_s = 0;
  double write_us = 0;
  double streamed = 0;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Side {
 public:
  Side(Lane& out, Lane& in, size_t ring_bytes)
      : out_(out), in_(in), ring_bytes_(ring_bytes), from_(kBytes), to_(kBytes) {}

  Sample Exchange(size_t way) {
    Meet();
    out_.written = 0;
    in_.read = 0;
    Meet();
    std::vector<double> writes;
    size_t streamed = 0;
    const Clock::time_point start = Clock::now();
    for (size_t sent = 0, received = 0; sent < kBytes || received < kBytes;) {
      if (sent < kBytes && sent + kPieceBytes - out_.read <= ring_bytes_) {
        const RingWrite chosen = way == 0   ? RingWrite::kCached
                                 : way == 1 ? RingWrite::kStreamed
                                            : choice_.Next();
        const Clock::time_point begin = Clock::now();
        Write(chosen, RingOf(out_) + sent % ring_bytes_, from_.data() + sent);
        const std::chrono::nanoseconds took = Clock::now() - begin;
        if (way == 2) choice_.Learn(chosen, kPieceBytes, took);
        streamed += chosen == RingWrite::kStreamed ? 1 : 0;
        writes.push_back(static_cast<double>(took.count()) / 1e3);
        sent += kPieceBytes;
        out_.written = sent;
      }
      if (received < kBytes && in_.written > received) {
        std::memcpy(to_.data() + received, RingOf(in_) + received % ring_bytes_, kPieceBytes);
        received += kPieceBytes;
        in_.read = received;
      }
    }
    const std::chrono::duration<double> took = Clock::now() - start;
    return {.exchange_gb_s = kBytes / took.count() / 1e9,
            .write_us = Median(writes),
            .streamed = static_cast<double>(streamed) / static_cast<double>(writes.size())};
  }

 private:
  static std::byte* RingOf(Lane& lane) { return reinterpret_cast<std::byte*>(&lane + 1); }
  static void Write(RingWrite way, std::byte* to, const std::byte* from) {
    if (way == RingWrite::kStreamed) {
      StreamedCopy(to, {from, kPieceBytes});
    } else {
      std::memcpy(to, from, kPieceBytes);
    }
  }
  void Meet() {
    const size_t count = out_.arrived + 1;
    out_.arrived = count;
    while (in_.arrived < count) {
    }
  }

  Lane& out_;
  Lane& in_;
  const size_t ring_bytes_;
  std::vector<std::byte> from_, to_;
  WriteChoice choice_;
};

// The first and the last one that this process may use.
std::array<int, 2> OuterCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::array<int, 2> outer = {-1, -1};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &set)) continue;
    if (outer[0] < 0) outer[0] = core;
    outer[1] = core;
  }
  return outer;
}

bool Keep(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

int Run(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? atoi(argv[i]) : otherwise; };
  const std::array<int, 2> outer = OuterCores();
  const std::array<int, 2> cores = {argument(1, outer[0]), argument(2, outer[1])};
  const int rounds = argument(3, 9);
  const auto ring_bytes = static_cast<size_t>(argument(4, 1 << 20));
  if (argc <= 1 && outer[0] == outer[1]) {
    std::printf("bench_ring_writes needs two cores\n");
    return 0;
  }
  if (cores[0] == cores[1] || !Keep(cores[1]) || !Keep(cores[0]) || rounds < 1 ||
      ring_bytes < kPieceBytes || ring_bytes % kPieceBytes != 0) {
    std::fprintf(stderr,
                 "two cores that this process may use, a round, and a ring of whole pieces of "
                 "64 KiB are needed\n");
    return 2;
  }
  const size_t lane_bytes = sizeof(Lane) + ring_bytes;
  void* const shared = mmap(nullptr, 2 * lane_bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (shared == MAP_FAILED) {
    std::perror("bench_ring_writes: mmap");
    return 1;
  }
  auto* const base = static_cast<std::byte*>(shared);
  const std::array<Lane*, 2> lanes = {new (base) Lane{}, new (base + lane_bytes) Lane{}};
  const pid_t child = fork();
  const size_t me = child == 0 ? 1 : 0;
  if (child == 0) Keep(cores[1]);
  Side side(*lanes[me], *lanes[1 - me], ring_bytes);
  std::array<std::array<std::vector<double>, 3>, kWays.size()> taken;
  for (int round = 0; round < rounds; ++round) {
    for (size_t way = 0; way < kWays.size(); ++way) {
      const Sample sample = side.Exchange(way);
      taken[way][0].push_back(sample.exchange_gb_s);
      taken[way][1].push_back(sample.write_us);
      taken[way][2].push_back(sample.streamed);
    }
  }
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  std::printf("%-10s %14s %10s %9s\n", "way", "exchange GB/s", "write us", "streamed");
  for (size_t way = 0; way < kWays.size(); ++way) {
    std::printf("%-10s %14.1f %10.1f %8.0f%%\n", kWays[way], Median(taken[way][0]),
                Median(taken[way][1]), 100 * Median(taken[way][2]));
  }
  return 0;
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) { return rabit::Run(argc, argv); }

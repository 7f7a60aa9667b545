#include "transport/shm/write_choice.h"

#include <functional>

#include "testing/test.h"

namespace rabit {
namespace {

using std::chrono::nanoseconds;

constexpr size_t kBytes = 64 * 1024;

// How many of `writes` were streamed, if each takes what `took` says.
int Streamed(WriteChoice& choice, int writes, const std::function<int64_t(RingWrite, int)>& took) {
  int streamed = 0;
  for (int i = 0; i < writes; ++i) {
    const RingWrite way = choice.Next();
    streamed += way == RingWrite::kStreamed ? 1 : 0;
    choice.Learn(way, kBytes, nanoseconds(took(way, i)));
  }
  return streamed;
}

int64_t Near(RingWrite way, int) { return way == RingWrite::kCached ? 4500 : 4000; }
int64_t Apart(RingWrite way, int) { return way == RingWrite::kCached ? 25000 : 3000; }

TEST(WriteChoice, stays_in_a_common_cache_but_for_trials) {
  WriteChoice choice;
  EXPECT_EQ(Streamed(choice, 8, Near), 4);
  EXPECT_EQ(Streamed(choice, 1270, Near), 10);
  EXPECT_TRUE(choice.best() == RingWrite::kCached);
}

TEST(WriteChoice, leaves_caches_that_are_not_shared_after_both_ways_were_tried) {
  WriteChoice choice;
  Streamed(choice, 8, Apart);
  EXPECT_TRUE(choice.best() == RingWrite::kStreamed);
  EXPECT_EQ(Streamed(choice, 1270, Apart), 1260);
}

TEST(WriteChoice, follows_cores_that_move) {
  WriteChoice choice;
  Streamed(choice, 100, Near);
  Streamed(choice, 8, Apart);
  EXPECT_TRUE(choice.best() == RingWrite::kStreamed);
  Streamed(choice, 4 * 127, Near);
  EXPECT_TRUE(choice.best() == RingWrite::kCached);
}

TEST(WriteChoice, is_not_impressed_by_interrupted_writes) {
  WriteChoice choice;
  Streamed(choice, 100, Near);
  Streamed(choice, 300,
           [](RingWrite way, int i) { return i % 2 == 0 ? int64_t{5'000'000} : Near(way, i); });
  EXPECT_TRUE(choice.best() == RingWrite::kCached);
}

TEST(WriteChoice, compares_pieces_of_different_lengths) {
  WriteChoice choice;
  for (int i = 0; i < 1000; ++i) {
    const RingWrite way = choice.Next();
    const size_t bytes = i % 2 == 0 ? 4096 : kBytes;
    choice.Learn(way, bytes, nanoseconds(static_cast<int64_t>(bytes) / 16));
  }
  EXPECT_TRUE(choice.best() == RingWrite::kCached);
}

}  // namespace
}  // namespace rabit

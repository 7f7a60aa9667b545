// WriteChoice: whether a sender writes its ring through the caches or past them.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace rabit {

enum class RingWrite : uint8_t { kCached, kStreamed };

// Where sender and reader share a cache, a ring that fits into it never reaches the memory, and
// writes through the caches are a tenth to a fifth faster.  Where they do not (chiplets, sockets),
// the sender has to take each line from the reader's cache before it writes it, which made a copy
// four to eight times slower than one past the caches.  Which of the two it is, virtual machines do
// not tell, and threads and virtual processors move; so what the writes take is measured, and now
// and then one is done the other way.  The decision record is 0090.
class WriteChoice {
 public:
  // How the next write is to be done.  Calls and Learn() alternate.
  RingWrite Next() {
    const uint32_t number = count_++;
    if (number < kWindow) return RingWrite::kCached;
    if (number < 2 * kWindow) return RingWrite::kStreamed;
    return number % kTrialEvery == 0 ? Other(best_) : best_;
  }
  // What a write of `bytes` took.
  void Learn(RingWrite way, size_t bytes, std::chrono::nanoseconds took) {
    Costs& costs = way == RingWrite::kCached ? cached_ : streamed_;
    const auto cost = took.count() * 1024 / static_cast<int64_t>(std::max<size_t>(bytes, 1));
    costs.last[costs.count++ % kWindow] = cost;
    if (cached_.count < kWindow || streamed_.count < kWindow) return;
    const bool is_slow = cached_.Least() > kSlowFactor * streamed_.Least();
    best_ = is_slow ? RingWrite::kStreamed : RingWrite::kCached;
  }
  // The way that most writes are done.
  RingWrite best() const { return best_; }

 private:
  // Of the last writes of each way the fastest one counts: an interrupt makes others look slow.
  static constexpr uint32_t kWindow = 4;
  // A trial costs as much as several writes.  Odd, because algorithms send contributions, from the
  // memory, and results, from the cache, by turns.
  static constexpr uint32_t kTrialEvery = 127;
  // With a common cache 0.8 to 1.9 were measured, without one 2.5 to 10.
  static constexpr int64_t kSlowFactor = 2;

  struct Costs {
    std::array<int64_t, kWindow> last{};  // ns for each KiB
    uint32_t count = 0;
    int64_t Least() const { return *std::min_element(last.begin(), last.end()); }
  };

  static RingWrite Other(RingWrite way) {
    return way == RingWrite::kCached ? RingWrite::kStreamed : RingWrite::kCached;
  }

  uint32_t count_ = 0;
  RingWrite best_ = RingWrite::kCached;
  Costs cached_;
  Costs streamed_;
};

}  // namespace rabit

// KeptSums: the last chunks of a place, until every worker has them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "backend/ps/ps_wire.h"

namespace rabit {

// Chunks that follow one another.  So many as workers can lack: a chunk is pushed by all when they have
// the sums of those kPsChunksInFlight before it.
class KeptSums {
 public:
  static constexpr size_t kMost = 2 * kPsChunksInFlight;

  struct Sum {
    PlacedPush placed;
    PlacedPushBytes encoded{};
    std::vector<std::byte> bytes;
  };

  // Where the next one will be kept, in place of the oldest.
  size_t next_slot() const { return count_ % kMost; }
  // Takes `bytes` and leaves others, whose memory can be used again.
  void Keep(const PlacedPush& placed, std::vector<std::byte>& bytes) {
    if (slots_.empty()) slots_.resize(kMost);
    Sum& sum = slots_[next_slot()];
    sum.placed = placed;
    sum.encoded = Encode(placed);
    std::swap(sum.bytes, bytes);
    ++count_;
  }

  size_t size() const { return std::min(count_, kMost); }
  // The oldest is 0.
  size_t SlotOf(size_t i) const { return (count_ - size() + i) % kMost; }
  Sum& At(size_t slot) { return slots_[slot]; }

  // Where the place goes on.
  PushPosition next() const {
    return count_ == 0 ? PushPosition() : slots_[(count_ - 1) % kMost].placed.next();
  }
  // Whether a worker that has all before `at`, and not `at`, finds here what it lacks.
  bool Covers(const PushPosition& at) const {
    return at == next() || (count_ > 0 && slots_[SlotOf(0)].placed.at <= at && at < next());
  }

 private:
  size_t count_ = 0;  // ever
  std::vector<Sum> slots_;
};

}  // namespace rabit

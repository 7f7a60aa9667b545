// BucketCounts: a number of buckets for each lane class.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace rabit {

// A lane class is a backend that operations can name: see schedule/lane_classes.h.
inline constexpr int32_t kLaneClassesMax = 4;

// Buckets are numbered, and counted when they are done, apart for each class: whoever waits for
// credit of one does not wait for the buckets of another.
struct BucketCounts {
  std::array<uint64_t, kLaneClassesMax> of{};

  BucketCounts() = default;
  // Implicit: a job with one backend has one class, the first.
  BucketCounts(uint64_t first) : of{first} {}

  uint64_t& operator[](int32_t lane_class) { return of[static_cast<size_t>(lane_class)]; }
  uint64_t operator[](int32_t lane_class) const { return of[static_cast<size_t>(lane_class)]; }

  // None of `other` is larger.
  bool Covers(const BucketCounts& other) const {
    for (size_t i = 0; i < of.size(); ++i) {
      if (of[i] < other.of[i]) return false;
    }
    return true;
  }
  void RaiseTo(const BucketCounts& other) {
    for (size_t i = 0; i < of.size(); ++i) of[i] = std::max(of[i], other.of[i]);
  }
  void LowerTo(const BucketCounts& other) {
    for (size_t i = 0; i < of.size(); ++i) of[i] = std::min(of[i], other.of[i]);
  }
  uint64_t total() const {
    uint64_t sum = 0;
    for (const uint64_t each : of) sum += each;
    return sum;
  }

  bool operator==(const BucketCounts&) const = default;
};

}  // namespace rabit

// Dice: random numbers that are the same on every machine.
#pragma once

#include <chrono>
#include <cstdint>

namespace rabit::testing {

// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t mixed = state_ += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return mixed ^ mixed >> 31;
  }
  // 0 … n-1
  int Below(int n) { return static_cast<int>(Next() % static_cast<uint64_t>(n)); }
  int Between(int lowest, int highest) { return lowest + Below(highest - lowest + 1); }
  bool OneIn(int n) { return Below(n) == 0; }
  std::chrono::microseconds MicrosBelow(int n) { return std::chrono::microseconds(Below(n)); }
  template <class T, size_t kSize>
  T OneOf(const T (&values)[kSize]) {
    return values[Below(static_cast<int>(kSize))];
  }

 private:
  uint64_t state_;
};

}  // namespace rabit::testing

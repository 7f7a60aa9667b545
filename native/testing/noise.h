// Numbers to compute with, the same for the same seed.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace rabit::testing {

using Floats = std::vector<float>;

// Normally distributed, around 0 with deviation 1.
inline Floats Noise(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats found(static_cast<size_t>(count));
  for (float& each : found) each = normal(random);
  return found;
}

}  // namespace rabit::testing

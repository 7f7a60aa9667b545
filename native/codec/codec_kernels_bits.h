// Bits of numbers, and random ones, for the loops of CodecKernels.  Included by codec_kernels_*.h
// only.
#pragma once

#include <cstdint>

namespace rabit {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr uint32_t kSign = 0x80000000u;

inline uint32_t BitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// codec/random.h says what this is; here it has to be inlined into the loops.
inline uint32_t Random(uint32_t low, uint32_t high, uint32_t i) {
  uint32_t x = low + i * 0x9e3779b9u;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15) ^ high) * 0x846ca68bu;
  return x ^ (x >> 16);
}

}  // namespace
}  // namespace rabit

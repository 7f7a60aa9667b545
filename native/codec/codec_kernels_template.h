// The loops of CodecKernels, compiled once for each instruction set.  Included by
// codec_kernels_*.cc only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec_kernels.h"
#include "codec/codec_kernels_bits.h"
#include "codec/codec_kernels_levels.h"

namespace rabit {
namespace {

constexpr int kLanes = 16;

uint32_t LargestBits(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(x[i]) & kMagnitude;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

inline float SumOfLanes(float* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

float SumOfMagnitudes(const float* x, int64_t count) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += FloatOf(BitsOf(x[i + j]) & kMagnitude);
  }
  for (int j = 0; i + j < count; ++j) lanes[j] += FloatOf(BitsOf(x[i + j]) & kMagnitude);
  return SumOfLanes(lanes);
}

float SumOfSquares(const float* x, int64_t count) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * x[i + j];
  }
  for (int j = 0; i + j < count; ++j) lanes[j] += x[i + j] * x[i + j];
  return SumOfLanes(lanes);
}

void SumsOfSides(const float* x, int64_t count, float* sums) {
  float upper[kLanes] = {}, lower[kLanes] = {};
  const auto add = [&](int lane, float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t is_negative = 0u - (bits >> 31);
    upper[lane] += FloatOf(bits & ~is_negative);
    lower[lane] += FloatOf(bits & is_negative);
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) add(j, x[i + j]);
  }
  for (int j = 0; i + j < count; ++j) add(j, x[i + j]);
  sums[0] = SumOfLanes(upper);
  sums[1] = SumOfLanes(lower);
}

// In groups: a float32 sum of a million elements would be off in the third digit.
int64_t SumBelow(const float* x, int64_t count, float bound, double* sum) {
  constexpr int64_t kGroup = 4096;
  const auto bits_of_bound = static_cast<int32_t>(BitsOf(bound));
  int64_t found = 0;
  *sum = 0;
  for (int64_t first = 0; first < count; first += kGroup) {
    const int64_t end = count - first < kGroup ? count : first + kGroup;
    float lanes[kLanes] = {};
    int32_t counts[kLanes] = {};
    const auto add = [&](int lane, float value) {
      const auto bits = static_cast<int32_t>(BitsOf(value) & kMagnitude);
      const int32_t is_below = -static_cast<int32_t>(bits < bits_of_bound);
      lanes[lane] += FloatOf(static_cast<uint32_t>(bits & is_below));
      counts[lane] -= is_below;
    };
    int64_t i = first;
    for (; i + kLanes <= end; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) add(j, x[i + j]);
    }
    for (int j = 0; i + j < end; ++j) add(j, x[i + j]);
    for (int j = 0; j < kLanes; ++j) found += counts[j];
    *sum += static_cast<double>(SumOfLanes(lanes));
  }
  return found;
}

// At least one element.
void Range(const float* x, int64_t count, float* least, float* largest) {
  float low[kLanes], high[kLanes];
  for (int j = 0; j < kLanes; ++j) low[j] = high[j] = x[0];
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      low[j] = x[i + j] < low[j] ? x[i + j] : low[j];
      high[j] = x[i + j] > high[j] ? x[i + j] : high[j];
    }
  }
  for (; i < count; ++i) {
    low[0] = x[i] < low[0] ? x[i] : low[0];
    high[0] = x[i] > high[0] ? x[i] : high[0];
  }
  for (int j = 1; j < kLanes; ++j) {
    low[0] = low[j] < low[0] ? low[j] : low[0];
    high[0] = high[j] > high[0] ? high[j] : high[0];
  }
  *least = low[0];
  *largest = high[0];
}

uint32_t Add(const float* a, const float* b, float* to, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = a[i] + b[i];
    const uint32_t bits = BitsOf(to[i]) & kMagnitude;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

constexpr float kFloat8Largest = 448.0f;
constexpr uint32_t kFloat8Top = 126;   // its code
constexpr uint32_t kFloat8Normal = 8;  // the code of 2^-6, below which the levels are 2^-9 apart
constexpr uint32_t kFloat8Bias = 120u << 3;  // from exponents of float32

void EncodeFloat8(const float* x, int64_t count, float scale, uint64_t key, uint8_t* to) {
  const float inverse = kFloat8Largest / scale;
  const auto low = static_cast<uint32_t>(key);
  const auto high = static_cast<uint32_t>(key >> 32);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(x[i]);
    const float place = FloatOf(bits & kMagnitude) * inverse;
    const uint32_t random = Random(low, high, static_cast<uint32_t>(i));
    const float uniform = static_cast<float>(static_cast<int32_t>(random >> 8)) * 0x1p-24f;
    // Masks: a branch here would be taken at random.
    const uint32_t is_small = static_cast<uint32_t>(-static_cast<int32_t>(place < 0x1p-6f));
    const float steps = FloatOf(BitsOf(place * 0x1p9f) & is_small);
    const auto below = static_cast<int32_t>(steps);
    const auto small =
        static_cast<uint32_t>(below + (uniform < steps - static_cast<float>(below) ? 1 : 0));
    const uint32_t large = ((BitsOf(place) + (random >> 12)) >> 20) - kFloat8Bias;
    uint32_t code = (small & is_small) | (large & ~is_small);
    code = static_cast<int32_t>(code) > static_cast<int32_t>(kFloat8Top) ? kFloat8Top : code;
    to[i] = static_cast<uint8_t>(code | bits >> 31 << 7);
  }
}

void DecodeFloat8(const uint8_t* from, int64_t count, float scale, float* to) {
  const float unit = scale / kFloat8Largest;
  for (int64_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint32_t>(from[i]);
    const uint32_t code = byte & 127;
    const uint32_t is_small = static_cast<uint32_t>(
        -static_cast<int32_t>(static_cast<int32_t>(code) < static_cast<int32_t>(kFloat8Normal)));
    const float small = static_cast<float>(static_cast<int32_t>(code)) * 0x1p-9f;
    const uint32_t large = (code + kFloat8Bias) << 20;
    const float value = FloatOf((BitsOf(small) & is_small) | (large & ~is_small)) * unit;
    to[i] += FloatOf(BitsOf(value) ^ (byte << 24 & kSign));
  }
}

void EncodeExponents(const float* x, int64_t count, uint64_t key, uint8_t* to) {
  const auto low = static_cast<uint32_t>(key);
  const auto high = static_cast<uint32_t>(key >> 32);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t random = Random(low, high, static_cast<uint32_t>(i));
    const auto code = static_cast<int32_t>(((BitsOf(x[i]) & kMagnitude) + (random >> 9)) >> 23);
    to[i] = static_cast<uint8_t>(code > 255 ? 255 : code);
  }
}

void DecodePowers(const uint8_t* exponents, const uint8_t* signs, int64_t count, float factor,
                  float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t sign = (static_cast<uint32_t>(signs[i / 8]) >> (i % 8)) << 31;
    to[i] += FloatOf((static_cast<uint32_t>(exponents[i]) << 23) | sign) * factor;
  }
}

void EncodeSigns(const float* x, int64_t count, uint8_t* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
#if defined(__AVX2__)
    *to++ = static_cast<uint8_t>(_mm256_movemask_ps(_mm256_loadu_ps(x + i)));
#else
    uint32_t byte = 0;
    for (int j = 0; j < 8; ++j) byte |= (BitsOf(x[i + j]) >> 31) << j;
    *to++ = static_cast<uint8_t>(byte);
#endif
  }
  if (i == count) return;
  uint32_t byte = 0;
  for (int j = 0; i + j < count; ++j) byte |= (BitsOf(x[i + j]) >> 31) << j;
  *to = static_cast<uint8_t>(byte);
}

void DecodeSigns(const uint8_t* from, int64_t count, float scale, float* to) {
  const uint32_t bits = BitsOf(scale);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const uint32_t byte = *from++;
    for (uint32_t j = 0; j < 8; ++j) to[i + j] += FloatOf(bits ^ ((byte << (31 - j)) & kSign));
  }
  for (uint32_t j = 0; i + j < count; ++j)
    to[i + j] += FloatOf(bits ^ ((*from << (31 - j)) & kSign));
}

void DecodeSides(const uint8_t* from, int64_t count, const float* values, float* to) {
  const uint32_t upper = BitsOf(values[0]);
  const uint32_t other = upper ^ BitsOf(values[1]);
  const auto value = [&](uint32_t byte, uint32_t j) {
    return FloatOf(upper ^ (other & (0u - ((byte >> j) & 1))));
  };
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const uint32_t byte = *from++;
    for (uint32_t j = 0; j < 8; ++j) to[i + j] += value(byte, j);
  }
  for (uint32_t j = 0; i + j < count; ++j) to[i + j] += value(*from, j);
}

void EncodeBytes(const float* x, int64_t count, float least, float steps, uint8_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    const auto code = static_cast<int32_t>((x[i] - least) * steps + 0.5f);
    to[i] = static_cast<uint8_t>(code > 255 ? 255 : code);
  }
}

void DecodeBytes(const uint8_t* from, int64_t count, float least, float step, float factor,
                 float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] += (static_cast<float>(static_cast<int32_t>(from[i])) * step + least) * factor;
  }
}

// Most groups have none: one test for each.
int64_t Select(const float* x, int64_t count, uint32_t threshold_bits, uint32_t* indices) {
  int64_t found = 0;
  int64_t i = 0;
  constexpr int kGroup = 32;
  const auto threshold = static_cast<int32_t>(threshold_bits);
  for (; i + kGroup <= count; i += kGroup) {
    int32_t any = 0;
    for (int j = 0; j < kGroup; ++j) {
      any |= static_cast<int32_t>(BitsOf(x[i + j]) & kMagnitude) >= threshold ? 1 : 0;
    }
    if (any == 0) continue;
    for (int j = 0; j < kGroup; ++j) {
      indices[found] = static_cast<uint32_t>(i + j);
      found += static_cast<int32_t>(BitsOf(x[i + j]) & kMagnitude) >= threshold ? 1 : 0;
    }
  }
  for (; i < count; ++i) {
    indices[found] = static_cast<uint32_t>(i);
    found += static_cast<int32_t>(BitsOf(x[i]) & kMagnitude) >= threshold ? 1 : 0;
  }
  return found;
}

// Chances first, which is vectorised, then places: a branch would be taken at random.
int64_t Draw(const float* x, int64_t count, float rate, uint64_t key, uint32_t* indices) {
  constexpr int64_t kGroup = 64;
  const auto low = static_cast<uint32_t>(key);
  const auto high = static_cast<uint32_t>(key >> 32);
  int64_t found = 0;
  for (int64_t first = 0; first < count; first += kGroup) {
    const int64_t size = count - first < kGroup ? count - first : kGroup;
    uint32_t is_drawn[kGroup];
    for (int64_t j = 0; j < size; ++j) {
      const uint32_t random = Random(low, high, static_cast<uint32_t>(first + j));
      const float uniform = static_cast<float>(static_cast<int32_t>(random >> 8)) * 0x1p-24f;
      is_drawn[j] = uniform < FloatOf(BitsOf(x[first + j]) & kMagnitude) * rate ? 1 : 0;
    }
    for (int64_t j = 0; j < size; ++j) {
      indices[found] = static_cast<uint32_t>(first + j);
      found += is_drawn[j];
    }
  }
  return found;
}

constexpr CodecKernels kCodecKernels = {
    &LargestBits,  &SumOfMagnitudes, &SumOfSquares, &SumsOfSides,
    &SumBelow,     &Range,           &Add,          &EncodeLevels,
    &DecodeLevels, &EncodeFloat8,    &DecodeFloat8, &EncodeExponents,
    &DecodePowers, &EncodeSigns,     &DecodeSigns,  &DecodeSides,
    &EncodeBytes,  &DecodeBytes,     &Select,       &Draw};

}  // namespace
}  // namespace rabit

// The loops of CodecKernels, compiled once for each instruction set.  Included by
// codec_kernels_*.cc only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec_kernels.h"

namespace rabit {
namespace {

// Elements that are encoded together; a multiple of 8.
constexpr int64_t kChunk = 256;
constexpr int kLanes = 16;
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

// 8 codes of one byte each become 8 * bits bits, in three steps that each join neighbours.
inline uint64_t Join(uint64_t codes, int bits) {
  const uint64_t ones = (uint64_t{1} << bits) - 1;
  const uint64_t in16 = ones * 0x0001000100010001u;
  codes = (codes & in16) | ((codes >> (8 - bits)) & (in16 << bits));
  const uint64_t pair = (uint64_t{1} << (2 * bits)) - 1;
  const uint64_t in32 = pair * 0x0000000100000001u;
  codes = (codes & in32) | ((codes >> (16 - 2 * bits)) & (in32 << (2 * bits)));
  const uint64_t four = (uint64_t{1} << (4 * bits)) - 1;
  return (codes & four) | ((codes >> (32 - 4 * bits)) & (four << (4 * bits)));
}

inline uint64_t Split(uint64_t joined, int bits) {
  const uint64_t four = (uint64_t{1} << (4 * bits)) - 1;
  joined = (joined & four) | ((joined & (four << (4 * bits))) << (32 - 4 * bits));
  const uint64_t in32 = ((uint64_t{1} << (2 * bits)) - 1) * 0x0000000100000001u;
  joined = (joined & in32) | ((joined & (in32 << (2 * bits))) << (16 - 2 * bits));
  const uint64_t in16 = ((uint64_t{1} << bits) - 1) * 0x0001000100010001u;
  return (joined & in16) | ((joined & (in16 << bits)) << (8 - bits));
}

template <int kBits>
uint8_t* Pack(const uint8_t* codes, int64_t groups, uint8_t* to) {
  for (int64_t g = 0; g < groups; ++g, to += kBits) {
    uint64_t word;
    __builtin_memcpy(&word, codes + g * 8, 8);
    if (kBits < 8) word = Join(word, kBits);
    __builtin_memcpy(to, &word, kBits);
  }
  return to;
}

template <int kBits>
const uint8_t* Unpack(const uint8_t* from, int64_t groups, uint8_t* codes) {
  for (int64_t g = 0; g < groups; ++g, from += kBits) {
    uint64_t word = 0;
    __builtin_memcpy(&word, from, kBits);
    if (kBits < 8) word = Split(word, kBits);
    __builtin_memcpy(codes + g * 8, &word, 8);
  }
  return from;
}

// E[code] is the value: up with the probability of the distance to the level below.
template <int kBits>
inline void UniformCodes(const float* x, int64_t count, float inverse, uint64_t key, int64_t first,
                         uint8_t* codes) {
  constexpr int32_t kTop = (1 << (kBits - 1)) - 1;
  const auto low = static_cast<uint32_t>(key);
  const auto high = static_cast<uint32_t>(key >> 32);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(x[i]);
    const float place = FloatOf(bits & kMagnitude) * inverse;
    const auto below = static_cast<int32_t>(place);
    const float distance = place - static_cast<float>(below);
    const uint32_t random = Random(low, high, static_cast<uint32_t>(first + i));
    const float uniform = static_cast<float>(static_cast<int32_t>(random >> 8)) * 0x1p-24f;
    int32_t level = below + (uniform < distance ? 1 : 0);
    level = level > kTop ? kTop : level;
    codes[i] = static_cast<uint8_t>(level | static_cast<int32_t>(bits >> 31) << (kBits - 1));
  }
}

// Between two powers of two the mantissa is the distance, so that adding as many random bits and
// cutting the mantissa off rounds without bias.
template <int kBits>
inline void ExponentialCodes(const float* x, int64_t count, float inverse, uint64_t key,
                             int64_t first, uint8_t* codes) {
  constexpr int32_t kTop = (1 << (kBits - 1)) - 1;
  const float least = FloatOf(static_cast<uint32_t>(127 - (kTop - 1)) << 23);
  const float of_least = FloatOf(static_cast<uint32_t>(127 + (kTop - 1)) << 23);
  const auto low = static_cast<uint32_t>(key);
  const auto high = static_cast<uint32_t>(key >> 32);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(x[i]);
    const float place = FloatOf(bits & kMagnitude) * inverse;
    const uint32_t random = Random(low, high, static_cast<uint32_t>(first + i));
    const float uniform = static_cast<float>(static_cast<int32_t>(random >> 8)) * 0x1p-24f;
    const int32_t small = uniform < place * of_least ? 1 : 0;
    const auto exponent = static_cast<int32_t>((BitsOf(place) + (random >> 9)) >> 23);
    // Masks: a branch here would be taken at random.
    const int32_t is_small = -static_cast<int32_t>(place < least);
    int32_t level = (small & is_small) | ((exponent - 127 + kTop) & ~is_small);
    level = level > kTop ? kTop : level;
    codes[i] = static_cast<uint8_t>(level | static_cast<int32_t>(bits >> 31) << (kBits - 1));
  }
}

template <int kBits>
void EncodeLevelsOf(const float* x, int64_t count, bool is_uniform, float scale, uint64_t key,
                    uint8_t* to) {
  constexpr auto kTop = static_cast<float>((1 << (kBits - 1)) - 1);
  const float inverse = (is_uniform ? kTop : 1.0f) / scale;
  uint8_t codes[kChunk];
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t some = count - first < kChunk ? count - first : kChunk;
    if (is_uniform) {
      UniformCodes<kBits>(x + first, some, inverse, key, first, codes);
    } else {
      ExponentialCodes<kBits>(x + first, some, inverse, key, first, codes);
    }
    for (int64_t i = some; i % 8 != 0; ++i) codes[i] = 0;
    to = Pack<kBits>(codes, (some + 7) / 8, to);
  }
}

template <int kBits>
void DecodeLevelsOf(const uint8_t* from, int64_t count, bool is_uniform, float scale, float* to) {
  constexpr int32_t kTop = (1 << (kBits - 1)) - 1;
  const float unit = scale / static_cast<float>(kTop);
  uint8_t codes[kChunk];
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t some = count - first < kChunk ? count - first : kChunk;
    from = Unpack<kBits>(from, (some + 7) / 8, codes);
    float* out = to + first;
    if (is_uniform) {
      for (int64_t i = 0; i < some; ++i) {
        const auto code = static_cast<uint32_t>(codes[i]);
        const float value = static_cast<float>(static_cast<int32_t>(code & kTop)) * unit;
        out[i] += FloatOf(BitsOf(value) ^ (code << (32 - kBits) & kSign));
      }
    } else {
      for (int64_t i = 0; i < some; ++i) {
        const auto code = static_cast<uint32_t>(codes[i]);
        const uint32_t level = code & kTop;
        const uint32_t is_some = static_cast<uint32_t>(-static_cast<int32_t>(level != 0));
        const uint32_t power = ((level + 127 - kTop) << 23) & is_some;
        const float value = FloatOf(power) * scale;
        out[i] += FloatOf(BitsOf(value) ^ (code << (32 - kBits) & kSign));
      }
    }
  }
}

using EncodeLevelsLoop = void (*)(const float*, int64_t, bool, float, uint64_t, uint8_t*);
using DecodeLevelsLoop = void (*)(const uint8_t*, int64_t, bool, float, float*);
constexpr EncodeLevelsLoop kEncodeLevels[] = {
    EncodeLevelsOf<2>, EncodeLevelsOf<3>, EncodeLevelsOf<4>, EncodeLevelsOf<5>,
    EncodeLevelsOf<6>, EncodeLevelsOf<7>, EncodeLevelsOf<8>};
constexpr DecodeLevelsLoop kDecodeLevels[] = {
    DecodeLevelsOf<2>, DecodeLevelsOf<3>, DecodeLevelsOf<4>, DecodeLevelsOf<5>,
    DecodeLevelsOf<6>, DecodeLevelsOf<7>, DecodeLevelsOf<8>};

void EncodeLevels(const float* x, int64_t count, LevelsShape shape, float scale, uint64_t key,
                  uint8_t* to) {
  kEncodeLevels[shape.bits - 2](x, count, shape.is_uniform, scale, key, to);
}

void DecodeLevels(const uint8_t* from, int64_t count, LevelsShape shape, float scale, float* to) {
  kDecodeLevels[shape.bits - 2](from, count, shape.is_uniform, scale, to);
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

constexpr CodecKernels kCodecKernels = {
    &LargestBits,  &SumOfMagnitudes, &SumOfSquares, &Range,           &Add,          &EncodeLevels,
    &DecodeLevels, &EncodeFloat8,    &DecodeFloat8, &EncodeExponents, &DecodePowers, &EncodeSigns,
    &DecodeSigns,  &EncodeBytes,     &DecodeBytes,  &Select};

}  // namespace
}  // namespace rabit

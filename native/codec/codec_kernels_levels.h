// The loops of CodecKernels for levels: codes of 2 to 8 bits, and what they stand for.  Included by
// codec_kernels_template.h only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec_kernels.h"
#include "codec/codec_kernels_bits.h"

namespace rabit {
namespace {

// Elements that are encoded together; a multiple of 8.
constexpr int64_t kChunk = 256;

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

// The last level that is not above, but for the top, which compilers find for many elements at once
// by comparing with all; up with the probability of the distance to it.
template <int kBits>
inline void TableCodes(const float* x, int64_t count, const float* table, float inverse,
                       uint64_t key, int64_t first, uint8_t* codes) {
  constexpr int32_t kTop = (1 << (kBits - 1)) - 1;
  float levels[kTop + 1];  // A copy, which what is stored to `codes` cannot change.
  for (int32_t j = 0; j <= kTop; ++j) levels[j] = table[j];
  const auto low = static_cast<uint32_t>(key);
  const auto high = static_cast<uint32_t>(key >> 32);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(x[i]);
    const float place = FloatOf(bits & kMagnitude) * inverse;
    int32_t level = 0;
    for (int32_t j = 1; j < kTop; ++j) level += place >= levels[j] ? 1 : 0;
    const uint32_t random = Random(low, high, static_cast<uint32_t>(first + i));
    const float uniform = static_cast<float>(static_cast<int32_t>(random >> 8)) * 0x1p-24f;
    const float gap = levels[level + 1] - levels[level];
    level += uniform * gap < place - levels[level] ? 1 : 0;
    codes[i] = static_cast<uint8_t>(level | static_cast<int32_t>(bits >> 31) << (kBits - 1));
  }
}

template <int kBits>
void EncodeLevelsOf(const float* x, int64_t count, LevelsShape shape, float scale, uint64_t key,
                    uint8_t* to) {
  constexpr auto kTop = static_cast<float>((1 << (kBits - 1)) - 1);
  const bool is_uniform = shape.is_uniform && shape.table == nullptr;
  const float inverse = (is_uniform ? kTop : 1.0f) / scale;
  uint8_t codes[kChunk];
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t some = count - first < kChunk ? count - first : kChunk;
    if (shape.table != nullptr) {
      TableCodes<kBits>(x + first, some, shape.table, inverse, key, first, codes);
    } else if (is_uniform) {
      UniformCodes<kBits>(x + first, some, inverse, key, first, codes);
    } else {
      ExponentialCodes<kBits>(x + first, some, inverse, key, first, codes);
    }
    for (int64_t i = some; i % 8 != 0; ++i) codes[i] = 0;
    to = Pack<kBits>(codes, (some + 7) / 8, to);
  }
}

template <int kBits>
void DecodeLevelsOf(const uint8_t* from, int64_t count, LevelsShape shape, float scale, float* to) {
  constexpr int32_t kTop = (1 << (kBits - 1)) - 1;
  const float unit = scale / static_cast<float>(kTop);
  float levels[kTop + 1];  // A copy, which what is stored to `to` cannot change.
  for (int32_t j = 0; shape.table != nullptr && j <= kTop; ++j) levels[j] = shape.table[j] * scale;
  uint8_t codes[kChunk];
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t some = count - first < kChunk ? count - first : kChunk;
    from = Unpack<kBits>(from, (some + 7) / 8, codes);
    float* out = to + first;
    if (shape.table != nullptr) {
      for (int64_t i = 0; i < some; ++i) {
        const auto code = static_cast<uint32_t>(codes[i]);
        const float value = levels[code & kTop];
        out[i] += FloatOf(BitsOf(value) ^ (code << (32 - kBits) & kSign));
      }
    } else if (shape.is_uniform) {
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

using EncodeLevelsLoop = void (*)(const float*, int64_t, LevelsShape, float, uint64_t, uint8_t*);
using DecodeLevelsLoop = void (*)(const uint8_t*, int64_t, LevelsShape, float, float*);
constexpr EncodeLevelsLoop kEncodeLevels[] = {
    EncodeLevelsOf<2>, EncodeLevelsOf<3>, EncodeLevelsOf<4>, EncodeLevelsOf<5>,
    EncodeLevelsOf<6>, EncodeLevelsOf<7>, EncodeLevelsOf<8>};
constexpr DecodeLevelsLoop kDecodeLevels[] = {
    DecodeLevelsOf<2>, DecodeLevelsOf<3>, DecodeLevelsOf<4>, DecodeLevelsOf<5>,
    DecodeLevelsOf<6>, DecodeLevelsOf<7>, DecodeLevelsOf<8>};

void EncodeLevels(const float* x, int64_t count, LevelsShape shape, float scale, uint64_t key,
                  uint8_t* to) {
  kEncodeLevels[shape.bits - 2](x, count, shape, scale, key, to);
}

void DecodeLevels(const uint8_t* from, int64_t count, LevelsShape shape, float scale, float* to) {
  kDecodeLevels[shape.bits - 2](from, count, shape, scale, to);
}

}  // namespace
}  // namespace rabit

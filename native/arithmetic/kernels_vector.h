// Vectors of RABIT_VECTOR_BYTES, and the 16-bit floats in them.  Part of kernels_template.h.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef RABIT_VECTOR_BYTES
#error "include this file from kernels_*.cc, which define RABIT_VECTOR_BYTES"
#endif

namespace rabit {
namespace {

constexpr int kLanes = RABIT_VECTOR_BYTES / 4;  // floats per vector

typedef float FloatVector __attribute__((vector_size(RABIT_VECTOR_BYTES)));
typedef uint32_t WordVector __attribute__((vector_size(RABIT_VECTOR_BYTES)));
typedef uint16_t HalfVector __attribute__((vector_size(RABIT_VECTOR_BYTES / 2)));

#define RABIT_INLINE inline __attribute__((always_inline))

template <class To, class From>
RABIT_INLINE To BitsAs(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// Between 16-bit and 32-bit lanes.  Compilers take the generic conversion apart lane by lane.
#if defined(__x86_64__) && RABIT_VECTOR_BYTES == 16
RABIT_INLINE WordVector WidenLanes(HalfVector half) {
  const __m128i low = _mm_cvtsi64_si128(BitsAs<int64_t>(half));
  return BitsAs<WordVector>(_mm_unpacklo_epi16(low, _mm_setzero_si128()));
}
RABIT_INLINE HalfVector NarrowLanes(WordVector words) {  // every word is below 65536
  // The pack saturates signed values, so the words are made signed 16-bit values first.
  const __m128i extended = _mm_srai_epi32(_mm_slli_epi32(BitsAs<__m128i>(words), 16), 16);
  return BitsAs<HalfVector>(_mm_cvtsi128_si64(_mm_packs_epi32(extended, extended)));
}
#elif defined(__AVX2__) && RABIT_VECTOR_BYTES == 32
RABIT_INLINE WordVector WidenLanes(HalfVector half) {
  return BitsAs<WordVector>(_mm256_cvtepu16_epi32(BitsAs<__m128i>(half)));
}
RABIT_INLINE HalfVector NarrowLanes(WordVector words) {  // every word is below 65536
  const __m256i wide = BitsAs<__m256i>(words);
  return BitsAs<HalfVector>(
      _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
}
#elif defined(__AVX512F__)
RABIT_INLINE WordVector WidenLanes(HalfVector half) {
  return BitsAs<WordVector>(_mm512_maskz_cvtepu16_epi32(0xffff, BitsAs<__m256i>(half)));
}
RABIT_INLINE HalfVector NarrowLanes(WordVector words) {
  return BitsAs<HalfVector>(_mm512_maskz_cvtepi32_epi16(0xffff, BitsAs<__m512i>(words)));
}
#else
RABIT_INLINE WordVector WidenLanes(HalfVector half) {
  return __builtin_convertvector(half, WordVector);
}
RABIT_INLINE HalfVector NarrowLanes(WordVector words) {
  return __builtin_convertvector(words, HalfVector);
}
#endif

// ---- 16-bit floats -------------------------------------------------------------------------

#if !defined(__F16C__)
// Exact below 2^24.
RABIT_INLINE FloatVector ToFloats(WordVector words) {
  typedef int32_t SignedVector __attribute__((vector_size(RABIT_VECTOR_BYTES)));
  return __builtin_convertvector(BitsAs<SignedVector>(words), FloatVector);
}

RABIT_INLINE FloatVector WidenFloat16(HalfVector half) {
  const WordVector bits = WidenLanes(half);
  const WordVector magnitude = bits & 0x7fffu;
  WordVector normal = (magnitude << 13) + (112u << 23);
  normal = magnitude >= 0x7c00u ? normal + (112u << 23) : normal;  // infinity, NaN
  normal = magnitude > 0x7c00u ? normal | 0x00400000u : normal;    // quiet
  const FloatVector tiny = ToFloats(magnitude) * 0x1p-24f;
  const WordVector result = magnitude < 0x400u ? BitsAs<WordVector>(tiny) : normal;
  return BitsAs<FloatVector>(result | ((bits & 0x8000u) << 16));
}

RABIT_INLINE HalfVector NarrowFloat16(FloatVector value) {
  const WordVector bits = BitsAs<WordVector>(value);
  const WordVector magnitude = bits & 0x7fffffffu;
  const WordVector rebased = magnitude - (112u << 23);
  const WordVector normal = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  // One unit in the last place of 0.5 is the smallest float16: the addition rounds.
  const FloatVector shifted = BitsAs<FloatVector>(magnitude) + 0.5f;
  const WordVector tiny = BitsAs<WordVector>(shifted) - 0x3f000000u;
  WordVector result = magnitude < 0x38800000u ? tiny : normal;
  result = magnitude >= 0x47800000u ? WordVector{} + 0x7c00u : result;  // from 65536: infinity
  result = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : result;
  return NarrowLanes(result | ((bits >> 16) & 0x8000u));
}
#elif RABIT_VECTOR_BYTES == 64
RABIT_INLINE FloatVector WidenFloat16(HalfVector half) {
  return BitsAs<FloatVector>(_mm512_maskz_cvtph_ps(0xffff, BitsAs<__m256i>(half)));
}
RABIT_INLINE HalfVector NarrowFloat16(FloatVector value) {
  return BitsAs<HalfVector>(_mm512_maskz_cvtps_ph(0xffff, BitsAs<__m512>(value),
                                                  _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#else
RABIT_INLINE FloatVector WidenFloat16(HalfVector half) {
  return BitsAs<FloatVector>(_mm256_cvtph_ps(BitsAs<__m128i>(half)));
}
RABIT_INLINE HalfVector NarrowFloat16(FloatVector value) {
  return BitsAs<HalfVector>(
      _mm256_cvtps_ph(BitsAs<__m256>(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#endif

RABIT_INLINE FloatVector WidenBfloat16(HalfVector half) {
  return BitsAs<FloatVector>(WidenLanes(half) << 16);
}

// The bfloat16 is the upper half of each word; what is left in the lower half has no meaning.  To
// nearest, ties to even.  Only quiet NaNs with zeros in the lower half stay what they are.
RABIT_INLINE WordVector RoundToBfloat16(FloatVector value) {
  const WordVector bits = BitsAs<WordVector>(value);
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

RABIT_INLINE HalfVector NarrowBfloat16(FloatVector value) {
  const WordVector bits = BitsAs<WordVector>(value);
  const WordVector rounded = RoundToBfloat16(value) >> 16;
  const WordVector quiet = (bits >> 16) | 0x40u;
  const WordVector result = (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
  return NarrowLanes(result);
}

}  // namespace
}  // namespace rabit

// CRC-32C by folding: 256 bytes at a time are multiplied forward past the next 256 without a carry,
// which keeps the remainder (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", 2009), here in 512-bit registers.
#include "base/crc32c.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define RABIT_FOLDING __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

namespace rabit {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected: bit 31 is x^0
constexpr size_t kRegisterBytes = 64;
constexpr size_t kBlockBytes = 4 * kRegisterBytes;

// x^exponent modulo the polynomial, reflected.
constexpr uint64_t PowerOfX(uint64_t exponent) {
  uint32_t value = 0x80000000u;
  for (uint64_t i = 0; i < exponent; ++i) {
    value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
  }
  return value;
}

// Move 128 bits forward by `bits`: the low half is 32 bits further from the end of the product
// than the high one is nearer.  A reflected product lacks one bit, hence the shift.
constexpr long long LowFactor(uint64_t bits) {
  return static_cast<long long>(PowerOfX(bits + 32) << 1);
}
constexpr long long HighFactor(uint64_t bits) {
  return static_cast<long long>(PowerOfX(bits - 32) << 1);
}

// Every 128-bit lane of `value` times its factors, plus `next`.
RABIT_FOLDING inline __m512i Fold(__m512i value, __m512i factors, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(value, factors, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(value, factors, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // exclusive or of all three
}

template <uint64_t kBits>
RABIT_FOLDING inline __m512i Factors() {
  constexpr long long kLow = LowFactor(kBits);
  constexpr long long kHigh = HighFactor(kBits);
  return _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
}

// The remainder of `value` as 512 bits of message.
RABIT_FOLDING inline uint32_t Reduce(__m512i value) {
  constexpr long long kLow[] = {LowFactor(384), LowFactor(256), LowFactor(128)};
  constexpr long long kHigh[] = {HighFactor(384), HighFactor(256), HighFactor(128)};
  const __m512i factors =
      _mm512_set_epi64(0, 0, kHigh[2], kLow[2], kHigh[1], kLow[1], kHigh[0], kLow[0]);
  alignas(64) __m128i lanes[8];
  _mm512_store_si512(lanes, Fold(value, factors, _mm512_setzero_si512()));
  _mm512_store_si512(lanes + 4, value);
  const __m128i sum =
      _mm_xor_si128(_mm_xor_si128(lanes[0], lanes[1]), _mm_xor_si128(lanes[2], lanes[7]));
  const uint64_t low = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_extract_epi64(sum, 0)));
  return static_cast<uint32_t>(
      _mm_crc32_u64(low, static_cast<uint64_t>(_mm_extract_epi64(sum, 1))));
}

}  // namespace

RABIT_FOLDING uint32_t Crc32cExtendAvx512(uint32_t crc, ConstBytes bytes) {
  if (bytes.size() < 2 * kBlockBytes) return Crc32cExtendSse42(crc, bytes);
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  const auto load = [&at](int i) RABIT_FOLDING {
    return _mm512_loadu_si512(at + static_cast<size_t>(i) * kRegisterBytes);
  };
  const __m512i initial = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc)));
  __m512i a = _mm512_xor_si512(load(0), initial);
  __m512i b = load(1);
  __m512i c = load(2);
  __m512i d = load(3);
  const __m512i past_block = Factors<8 * kBlockBytes>();
  for (at += kBlockBytes, left -= kBlockBytes; left >= kBlockBytes;
       at += kBlockBytes, left -= kBlockBytes) {
    a = Fold(a, past_block, load(0));
    b = Fold(b, past_block, load(1));
    c = Fold(c, past_block, load(2));
    d = Fold(d, past_block, load(3));
  }
  const __m512i past_register = Factors<8 * kRegisterBytes>();
  d = Fold(Fold(Fold(a, past_register, b), past_register, c), past_register, d);
  return Crc32cExtendSse42(~Reduce(d), bytes.last(left));
}

}  // namespace rabit

#endif

// CRC-32C with the processor's instruction.  The instruction takes 3 cycles but starts every
// cycle, so three independent streams run at once and are joined by a carry-less multiplication
// (Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", 2011).
#include "base/crc32c.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

namespace rabit {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected: bit 31 is x^0

// x^exponent modulo the polynomial, reflected.
constexpr uint32_t PowerOfX(uint64_t exponent) {
  uint32_t value = 0x80000000u;
  for (uint64_t i = 0; i < exponent; ++i) {
    value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
  }
  return value;
}

// Multiplying a checksum by this and reducing moves it past `bytes` zero bytes.  The reflected
// product lacks one bit (x) and the reduction multiplies by x^32, hence 33.
constexpr uint64_t ShiftFactor(uint64_t bytes) { return PowerOfX(bytes * 8 - 33); }

uint64_t Load(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

uint64_t ShiftPast(uint64_t crc, uint64_t factor) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(crc)),
                                               _mm_cvtsi64_si128(static_cast<int64_t>(factor)), 0);
  return _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product)));
}

// Consumes whole groups of three blocks of kBlock bytes.
template <size_t kBlock>
uint64_t ThreeStreams(uint64_t crc, const std::byte*& at, size_t& left) {
  constexpr uint64_t kPastOne = ShiftFactor(kBlock);
  constexpr uint64_t kPastTwo = ShiftFactor(2 * kBlock);
  while (left >= 3 * kBlock) {
    uint64_t a = crc;
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < kBlock; i += 8) {
      a = _mm_crc32_u64(a, Load(at + i));
      b = _mm_crc32_u64(b, Load(at + kBlock + i));
      c = _mm_crc32_u64(c, Load(at + 2 * kBlock + i));
    }
    crc = ShiftPast(a, kPastTwo) ^ ShiftPast(b, kPastOne) ^ c;
    at += 3 * kBlock;
    left -= 3 * kBlock;
  }
  return crc;
}

}  // namespace

uint32_t Crc32cExtendSse42(uint32_t initial, ConstBytes bytes) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t crc = static_cast<uint32_t>(~initial);
  crc = ThreeStreams<4096>(crc, at, left);
  crc = ThreeStreams<256>(crc, at, left);
  crc = ThreeStreams<64>(crc, at, left);
  for (; left >= 8; at += 8, left -= 8) crc = _mm_crc32_u64(crc, Load(at));
  auto narrow = static_cast<uint32_t>(crc);
  for (; left > 0; ++at, --left) narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(*at));
  return ~narrow;
}

}  // namespace rabit

#endif

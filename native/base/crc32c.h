// CRC-32C (Castagnoli), the checksum of every frame.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace rabit {

// The checksum of `bytes` after others whose checksum is `crc`:
// Crc32cExtend(Crc32c(a), b) == Crc32c(a followed by b).  Uses the processor's instruction if
// there is one; thread-safe.
uint32_t Crc32cExtend(uint32_t crc, ConstBytes bytes);

inline uint32_t Crc32c(ConstBytes bytes) { return Crc32cExtend(0, bytes); }

// The implementations, for tests and benchmarks.
uint32_t Crc32cExtendPortable(uint32_t crc, ConstBytes bytes);
#if defined(__x86_64__)
uint32_t Crc32cExtendSse42(uint32_t crc, ConstBytes bytes);   // only if HasCrc32cInstruction()
uint32_t Crc32cExtendAvx512(uint32_t crc, ConstBytes bytes);  // only if HasCrc32cFolding()
#endif
bool HasCrc32cInstruction();
bool HasCrc32cFolding();  // by 512-bit carry-less multiplication

}  // namespace rabit

#include "base/crc32c.h"

#include <array>
#include <cstring>

#include "base/cpu_features.h"

namespace rabit {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// Slicing by 8: table k advances one byte past k further zero bytes
// (Kounavis and Berry, "Novel Table Lookup-Based Algorithms for High-Performance CRC", 2008).
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

uint32_t Crc32cExtendPortable(uint32_t crc, ConstBytes bytes) {
  const auto* at = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  crc = ~crc;
  for (; left >= 8; at += 8, left -= 8) {
    uint32_t low;
    std::memcpy(&low, at, 4);
    low ^= crc;
    crc = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][at[4]] ^ kTables[2][at[5]] ^ kTables[1][at[6]] ^
          kTables[0][at[7]];
  }
  for (; left > 0; ++at, --left) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xff];
  return ~crc;
}

bool HasCrc32cInstruction() {
  static const bool has = CpuHasSse42();
  return has;
}

bool HasCrc32cFolding() {
  static const bool has = CpuHasVectorPclmul();
  return has;
}

uint32_t Crc32cExtend(uint32_t crc, ConstBytes bytes) {
#if defined(__x86_64__)
  if (HasCrc32cFolding()) return Crc32cExtendAvx512(crc, bytes);
  if (HasCrc32cInstruction()) return Crc32cExtendSse42(crc, bytes);
#endif
  return Crc32cExtendPortable(crc, bytes);
}

}  // namespace rabit

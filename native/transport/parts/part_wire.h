// What a reader of parts asks, and what the rank that serves them answers.
//
//   reader -> server  question  24 bytes: part, version, bytes of the part
//   server -> reader  answer    16 bytes: kind, 0, version; any number of kWait before the last one
//   server -> reader  the bytes of the part, then 8 bytes: kind (kParts, or kGone if it changed meanwhile),
//                     CRC-32C of the bytes; only after kParts
//
// Numbers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"

namespace rabit {

inline constexpr size_t kPartQuestionBytes = 24;
inline constexpr size_t kPartAnswerBytes = 16;
inline constexpr size_t kPartEndBytes = 8;

struct PartQuestion {
  uint64_t part = 0;
  uint64_t version = 0;
  uint64_t bytes = 0;
};

enum class PartKind : uint32_t {
  kParts = 0,      // the bytes follow
  kWait = 1,       // the server lives, and its part has an older version
  kGone = 2,       // it has a later version
  kUnknown = 3,    // it has no such part
  kOtherSize = 4,  // it has another number of bytes, which `version` is
};

struct PartAnswer {
  PartKind kind = PartKind::kParts;
  uint64_t version = 0;  // that the server has
};

struct PartEnd {
  PartKind kind = PartKind::kParts;
  uint32_t checksum = 0;
};

std::array<std::byte, kPartQuestionBytes> Encode(const PartQuestion& question);
PartQuestion DecodePartQuestion(const std::array<std::byte, kPartQuestionBytes>& bytes);
std::array<std::byte, kPartAnswerBytes> Encode(const PartAnswer& answer);
// kInternal for a kind that there is not.
Result<PartAnswer> DecodePartAnswer(const std::array<std::byte, kPartAnswerBytes>& bytes);
std::array<std::byte, kPartEndBytes> Encode(const PartEnd& end);
Result<PartEnd> DecodePartEnd(const std::array<std::byte, kPartEndBytes>& bytes);

}  // namespace rabit

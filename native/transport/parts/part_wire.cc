#include "transport/parts/part_wire.h"

#include <string>

#include "base/wire.h"

namespace rabit {
namespace {

Result<PartKind> ToPartKind(uint32_t kind) {
  if (kind <= static_cast<uint32_t>(PartKind::kOtherSize)) return static_cast<PartKind>(kind);
  return Internal("a rank that serves parts answers with kind " + std::to_string(kind) +
                  "; install the same version of rabit on every host");
}

}  // namespace

std::array<std::byte, kPartQuestionBytes> Encode(const PartQuestion& question) {
  std::array<std::byte, kPartQuestionBytes> bytes{};
  StoreLittle(bytes.data(), question.part);
  StoreLittle(bytes.data() + 8, question.version);
  StoreLittle(bytes.data() + 16, question.bytes);
  return bytes;
}

PartQuestion DecodePartQuestion(const std::array<std::byte, kPartQuestionBytes>& bytes) {
  return {LoadLittle<uint64_t>(bytes.data()), LoadLittle<uint64_t>(bytes.data() + 8),
          LoadLittle<uint64_t>(bytes.data() + 16)};
}

std::array<std::byte, kPartAnswerBytes> Encode(const PartAnswer& answer) {
  std::array<std::byte, kPartAnswerBytes> bytes{};
  StoreLittle(bytes.data(), static_cast<uint32_t>(answer.kind));
  StoreLittle(bytes.data() + 8, answer.version);
  return bytes;
}

Result<PartAnswer> DecodePartAnswer(const std::array<std::byte, kPartAnswerBytes>& bytes) {
  RABIT_ASSIGN_OR_RETURN(const PartKind kind, ToPartKind(LoadLittle<uint32_t>(bytes.data())));
  return PartAnswer{kind, LoadLittle<uint64_t>(bytes.data() + 8)};
}

std::array<std::byte, kPartEndBytes> Encode(const PartEnd& end) {
  std::array<std::byte, kPartEndBytes> bytes{};
  StoreLittle(bytes.data(), static_cast<uint32_t>(end.kind));
  StoreLittle(bytes.data() + 4, end.checksum);
  return bytes;
}

Result<PartEnd> DecodePartEnd(const std::array<std::byte, kPartEndBytes>& bytes) {
  RABIT_ASSIGN_OR_RETURN(const PartKind kind, ToPartKind(LoadLittle<uint32_t>(bytes.data())));
  return PartEnd{kind, LoadLittle<uint32_t>(bytes.data() + 4)};
}

}  // namespace rabit

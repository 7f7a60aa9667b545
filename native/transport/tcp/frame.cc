#include "transport/tcp/frame.h"

#include <string>

#include "base/crc32c.h"
#include "base/wire.h"

namespace rabit {
namespace {

constexpr uint32_t kMagic = 0x46544252;  // "RBTF"
constexpr size_t kCrcAt = 60;

}  // namespace

void EncodeFrameHeader(const FrameHeader& header, FrameHeaderBytes& out) {
  std::byte* at = out.data();
  StoreLittle<uint32_t>(at, kMagic);
  StoreLittle<uint8_t>(at + 4, kFrameVersion);
  StoreLittle<uint8_t>(at + 5, static_cast<uint8_t>(header.type));
  StoreLittle<uint8_t>(at + 6, header.flags);
  StoreLittle<uint8_t>(at + 7, header.link);
  StoreLittle<uint64_t>(at + 8, header.sequence);
  StoreLittle<uint64_t>(at + 16, header.ack);
  StoreLittle<uint64_t>(at + 24, header.tag);
  StoreLittle<uint64_t>(at + 32, header.message_bytes);
  StoreLittle<uint64_t>(at + 40, header.offset);
  StoreLittle<uint32_t>(at + 48, header.payload_bytes);
  StoreLittle<uint32_t>(at + 52, header.payload_crc);
  StoreLittle<uint32_t>(at + 56, header.epoch);
  StoreLittle<uint32_t>(at + kCrcAt, Crc32c(ConstBytes(out).first(kCrcAt)));
}

Result<FrameHeader> DecodeFrameHeader(ConstBytes bytes) {
  RABIT_CHECK(bytes.size() == kFrameHeaderBytes, std::to_string(bytes.size()));
  const std::byte* at = bytes.data();
  if (const auto magic = LoadLittle<uint32_t>(at); magic != kMagic) {
    return Internal("a frame starts with " + std::to_string(magic) +
                    " instead of the magic number");
  }
  if (LoadLittle<uint32_t>(at + kCrcAt) != Crc32c(bytes.first(kCrcAt))) {
    return Internal("a frame header has a wrong checksum");
  }
  // From here on the sender wrote what was read, so a wrong value is its defect or its version.
  if (const auto version = LoadLittle<uint8_t>(at + 4); version != kFrameVersion) {
    return Unsupported("a frame has wire version " + std::to_string(version) + ", this library " +
                       std::to_string(kFrameVersion) + ": install the same version on every host");
  }
  FrameHeader header;
  const auto type = LoadLittle<uint8_t>(at + 5);
  header.type = static_cast<FrameType>(type);
  header.flags = LoadLittle<uint8_t>(at + 6);
  header.link = LoadLittle<uint8_t>(at + 7);
  header.sequence = LoadLittle<uint64_t>(at + 8);
  header.ack = LoadLittle<uint64_t>(at + 16);
  header.tag = LoadLittle<uint64_t>(at + 24);
  header.message_bytes = LoadLittle<uint64_t>(at + 32);
  header.offset = LoadLittle<uint64_t>(at + 40);
  header.payload_bytes = LoadLittle<uint32_t>(at + 48);
  header.payload_crc = LoadLittle<uint32_t>(at + 52);
  header.epoch = LoadLittle<uint32_t>(at + 56);
  if (type < 1 || type > 6) return Internal("a frame has type " + std::to_string(type));
  const uint64_t payload_max = header.type == FrameType::kData ? kFramePayloadBytesMax : 0;
  if (header.payload_bytes > payload_max) {
    return Internal("a frame of type " + std::to_string(type) + " has a payload of " +
                    std::to_string(header.payload_bytes) + " bytes");
  }
  if (header.type == FrameType::kNack && header.ack > header.sequence) {
    return Internal("a frame asks for frame " + std::to_string(header.sequence) +
                    " again and acknowledges all before frame " + std::to_string(header.ack));
  }
  if (header.message_bytes > kMessageBytesMax || header.offset > header.message_bytes ||
      header.payload_bytes > header.message_bytes - header.offset) {
    return Internal("a frame has " + std::to_string(header.payload_bytes) + " bytes at " +
                    std::to_string(header.offset) + " of a message of " +
                    std::to_string(header.message_bytes) + " bytes");
  }
  return header;
}

}  // namespace rabit

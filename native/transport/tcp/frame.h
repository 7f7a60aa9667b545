// Frame: the unit of the TCP wire format.  A message is cut into frames of at most 256 KiB.
//
// Header, 64 bytes, little-endian:
//    0 u32 magic "RBTF"      4 u8 version   5 u8 type   6 u8 flags   7 u8 link
//    8 u64 sequence          of this frame on its link (data, goodbye) or asked for again (nack)
//   16 u64 ack               every frame of the other direction before this one has arrived
//   24 u64 tag              32 u64 message_bytes      40 u64 offset of the payload in the message
//   48 u32 payload_bytes    52 u32 payload_crc        56 u32 epoch   60 u32 CRC-32C of bytes 0-59
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"

namespace rabit {

inline constexpr size_t kFrameHeaderBytes = 64;
inline constexpr size_t kFramePayloadBytesMax = 256 * 1024;
inline constexpr uint64_t kMessageBytesMax = uint64_t{1} << 40;
inline constexpr uint8_t kFrameVersion = 3;

enum class FrameType : uint8_t {
  kHello = 1,    // first on every connection: `ack` says where the peer must resume
  kData = 2,     // numbered
  kAck = 3,      // only carries `ack`; shows that the sender is alive
  kNack = 4,     // frame `sequence` arrived with a wrong checksum: send from there again
  kGoodbye = 5,  // numbered; nothing follows
  kLeave = 6,    // nothing of this epoch follows; the connection may go on in a later one
};

// Flags.
inline constexpr uint8_t kFrameAckNow = 1;     // the sender waits for an acknowledgement
inline constexpr uint8_t kFrameUnchecked = 2;  // `payload_crc` says nothing

struct FrameHeader {
  FrameType type = FrameType::kData;
  uint8_t flags = 0;
  uint8_t link = 0;
  uint64_t sequence = 0;
  uint64_t ack = 0;
  uint64_t tag = 0;
  uint64_t message_bytes = 0;
  uint64_t offset = 0;
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;
  uint32_t epoch = 0;  // the low bits of the engine's

  bool is_checked() const { return (flags & kFrameUnchecked) == 0; }
  bool is_numbered() const { return type == FrameType::kData || type == FrameType::kGoodbye; }
  bool operator==(const FrameHeader&) const = default;
};

using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

void EncodeFrameHeader(const FrameHeader& header, FrameHeaderBytes& out);
// `bytes`: kFrameHeaderBytes of them.  Every field is within its bounds in a header returned here.
Result<FrameHeader> DecodeFrameHeader(ConstBytes bytes);

}  // namespace rabit

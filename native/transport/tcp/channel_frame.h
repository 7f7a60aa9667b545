// Frames of the TCP channel: a 20-byte header and at most kChannelMessageBytesMax bytes.
//
//   0 u32 payload bytes   4 u8 version   5 u8 kind   6 u16 zero   8 u64 sequence   16 u32 CRC-32C
//
// The checksum covers the header before it and the payload.  Every frame of a direction is
// numbered, so that one lost or doubled is seen.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"

namespace rabit {

inline constexpr uint8_t kChannelWireVersion = 1;
inline constexpr size_t kChannelHeaderBytes = 20;
inline constexpr size_t kIntroductionBytesMax = 512;

enum class ChannelFrameKind : uint8_t { kIntroduction = 1, kMessage = 2, kBeat = 3, kGoodbye = 4 };

using ChannelHeader = std::array<std::byte, kChannelHeaderBytes>;

ChannelHeader EncodeChannelHeader(ChannelFrameKind kind, uint64_t sequence, ConstBytes payload);

struct ChannelFrameInfo {
  ChannelFrameKind kind = ChannelFrameKind::kBeat;
  size_t payload_bytes = 0;
};

// Checks everything but the checksum; `sequence` is the number that must come next.  The messages
// of both functions continue "rank 3 sent …".
Result<ChannelFrameInfo> DecodeChannelHeader(ConstBytes header, uint64_t sequence);
Status CheckChannelFrame(ConstBytes header, ConstBytes payload);

// Who sits at the other end, for messages.
struct ChannelIntroduction {
  std::string host;
  int32_t pid = 0;
};

ChannelIntroduction OwnIntroduction();
std::vector<std::byte> EncodeIntroduction(const ChannelIntroduction& introduction);
Result<ChannelIntroduction> DecodeIntroduction(ConstBytes payload);

}  // namespace rabit

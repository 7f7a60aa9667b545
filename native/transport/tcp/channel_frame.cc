#include "transport/tcp/channel_frame.h"

#include <unistd.h>

#include "base/crc32c.h"
#include "base/wire.h"
#include "transport/channel_options.h"

namespace rabit {
namespace {

constexpr size_t kChecksumAt = 16;
constexpr size_t kHostBytesMax = 255;

Status Malformed(const std::string& what) {
  return Internal("sent " + what + "; run the same version of rabit on every host");
}

}  // namespace

ChannelHeader EncodeChannelHeader(ChannelFrameKind kind, uint64_t sequence, ConstBytes payload) {
  ChannelHeader header{};
  StoreLittle(header.data(), static_cast<uint32_t>(payload.size()));
  StoreLittle(header.data() + 4, kChannelWireVersion);
  StoreLittle(header.data() + 5, static_cast<uint8_t>(kind));
  StoreLittle(header.data() + 8, sequence);
  StoreLittle(header.data() + kChecksumAt,
              Crc32cExtend(Crc32c(ConstBytes(header).first(kChecksumAt)), payload));
  return header;
}

Result<ChannelFrameInfo> DecodeChannelHeader(ConstBytes header, uint64_t sequence) {
  if (header.size() < kChannelHeaderBytes) return Malformed("a frame that ends early");
  const uint32_t bytes = LoadLittle<uint32_t>(header.data());
  const uint8_t version = LoadLittle<uint8_t>(header.data() + 4);
  const uint8_t kind = LoadLittle<uint8_t>(header.data() + 5);
  const uint64_t seen = LoadLittle<uint64_t>(header.data() + 8);
  if (version != kChannelWireVersion) {
    return Malformed("a control frame of version " + std::to_string(version) +
                     ", this process speaks " + std::to_string(kChannelWireVersion));
  }
  if (kind < static_cast<uint8_t>(ChannelFrameKind::kIntroduction) ||
      kind > static_cast<uint8_t>(ChannelFrameKind::kGoodbye)) {
    return Malformed("a control frame of unknown kind " + std::to_string(kind));
  }
  const auto known = static_cast<ChannelFrameKind>(kind);
  const size_t bytes_max = known == ChannelFrameKind::kMessage        ? kChannelMessageBytesMax
                           : known == ChannelFrameKind::kIntroduction ? kIntroductionBytesMax
                                                                      : 0;
  if (bytes > bytes_max) {
    return Malformed("a control frame that claims " + std::to_string(bytes) +
                     " bytes where at most " + std::to_string(bytes_max) + " are allowed");
  }
  if (seen != sequence) {
    return Malformed("control frame " + std::to_string(seen) + " where frame " +
                     std::to_string(sequence) + " was due");
  }
  return ChannelFrameInfo{known, bytes};
}

Status CheckChannelFrame(ConstBytes header, ConstBytes payload) {
  const uint32_t expected = Crc32cExtend(Crc32c(header.first(kChecksumAt)), payload);
  if (LoadLittle<uint32_t>(header.data() + kChecksumAt) == expected) return {};
  return Internal(
      "sent a control frame whose checksum is wrong: bytes were changed on the way; "
      "check the network and its offload settings");
}

ChannelIntroduction OwnIntroduction() {
  char name[kHostBytesMax + 1] = "";
  if (::gethostname(name, kHostBytesMax) != 0) name[0] = '\0';
  return {name[0] == '\0' ? "unknown" : name, static_cast<int32_t>(::getpid())};
}

std::vector<std::byte> EncodeIntroduction(const ChannelIntroduction& introduction) {
  std::vector<std::byte> payload;
  WireWriter writer(payload);
  writer.I32(introduction.pid);
  writer.Text(std::string_view(introduction.host).substr(0, kHostBytesMax));
  return payload;
}

Result<ChannelIntroduction> DecodeIntroduction(ConstBytes payload) {
  WireReader reader(payload);
  ChannelIntroduction introduction;
  introduction.pid = reader.I32();
  introduction.host = reader.Text(kHostBytesMax);
  if (!reader.Finish("").ok()) return Malformed("a malformed introduction");
  return introduction;
}

}  // namespace rabit

// The headers of the frames on TCP.  The checksum is put right, so that the fields behind it are
// reached.
#include <algorithm>

#include "base/crc32c.h"
#include "fuzz/round_trip.h"
#include "transport/tcp/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rabit;
  if (size != kFrameHeaderBytes) return 0;
  FrameHeaderBytes header;
  std::ranges::copy(fuzz::AsBytes(data, size), header.begin());
  constexpr size_t kCrcAt = kFrameHeaderBytes - sizeof(uint32_t);
  const uint32_t crc = Crc32c(ConstBytes(header).first(kCrcAt));
  for (size_t i = 0; i < sizeof crc; ++i)
    header[kCrcAt + i] = static_cast<std::byte>(crc >> (8 * i));
  fuzz::CheckRoundTrip(ConstBytes(header), DecodeFrameHeader, [](const FrameHeader& decoded) {
    FrameHeaderBytes out;
    EncodeFrameHeader(decoded, out);
    return std::vector<std::byte>(out.begin(), out.end());
  });
  return 0;
}

// The headers of the frames on TCP.
#include "fuzz/round_trip.h"
#include "transport/tcp/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rabit;
  fuzz::CheckRoundTrip(fuzz::AsBytes(data, size), DecodeFrameHeader, [](const FrameHeader& header) {
    FrameHeaderBytes out;
    EncodeFrameHeader(header, out);
    return std::vector<std::byte>(out.begin(), out.end());
  });
  return 0;
}

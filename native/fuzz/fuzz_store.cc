// What the store reads from ranks (first byte even) and ranks from the store (odd).
#include "fuzz/round_trip.h"
#include "rendezvous/store_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rabit;
  if (size == 0) return 0;
  const ConstBytes bytes = fuzz::AsBytes(data, size).subspan(1);
  // The length in front of a frame is read from the socket before it, and no part of what is
  // decoded.
  const auto content = [](std::vector<std::byte> frame) {
    frame.erase(frame.begin(), frame.begin() + kStoreLengthBytes);
    return frame;
  };
  if (data[0] % 2 == 0) {
    fuzz::CheckRoundTrip(bytes, DecodeStoreRequest, [&](const StoreRequest& request) {
      return content(EncodeStoreRequest(request));
    });
  } else {
    fuzz::CheckRoundTrip(bytes, DecodeStoreResponse, [&](const StoreResponse& response) {
      return content(EncodeStoreResponse(response));
    });
  }
  return 0;
}

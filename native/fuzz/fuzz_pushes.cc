// What a summation server reads from workers: what they are about to push, and who is in a group.
#include <algorithm>
#include <vector>

#include "backend/ps/ps_wire.h"
#include "fuzz/round_trip.h"

namespace {

constexpr int kWorkers = 4;

template <class Header>
std::vector<std::byte> Written(const Header& header) {
  const auto bytes = rabit::Encode(header);
  return {bytes.begin(), bytes.end()};
}

// Of the length that a message of this kind has, whatever the input's.
template <class HeaderBytes>
HeaderBytes Cut(rabit::ConstBytes bytes) {
  HeaderBytes header{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), header.size()), header.begin());
  return header;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rabit;
  const ConstBytes bytes = fuzz::AsBytes(data, size);
  for (const int members : {1, kWorkers}) {  // One alone may update what is kept.
    fuzz::CheckRoundTrip(
        bytes,
        [members](ConstBytes from) {
          return DecodePushHeader(Cut<PushHeaderBytes>(from), members);
        },
        Written<PushHeader>);
    fuzz::CheckRoundTrip(
        bytes,
        [members](ConstBytes from) {
          return DecodePlacedPush(Cut<PlacedPushBytes>(from), members);
        },
        Written<PlacedPush>);
  }
  fuzz::CheckRoundTrip(
      bytes,
      [](ConstBytes from) { return DecodeGroupHeader(Cut<GroupHeaderBytes>(from), kWorkers); },
      Written<GroupHeader>);
  return 0;
}

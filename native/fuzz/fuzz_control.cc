// The messages of the negotiation, which rank 0 and the parents of a tree read from every rank.
#include "control/agreement_wire.h"
#include "control/bundle_wire.h"
#include "fuzz/round_trip.h"

namespace {

template <class Message>
std::vector<std::byte> Written(const Message& message) {
  std::vector<std::byte> out;
  rabit::Encode(message, out);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rabit;
  const ConstBytes bytes = fuzz::AsBytes(data, size);
  const Result<ControlType> type = TypeOf(bytes);
  if (!type.ok()) return 0;
  switch (*type) {
    case ControlType::kAnnounce:
      fuzz::CheckRoundTrip(bytes, DecodeAnnounce, Written<AnnounceMessage>);
      break;
    case ControlType::kAgree:
      fuzz::CheckRoundTrip(bytes, DecodeAgree, Written<AgreeMessage>);
      break;
    case ControlType::kBundle:
      fuzz::CheckRoundTrip(bytes, DecodeBundle, Written<BundleMessage>);
      break;
    case ControlType::kStall:
      fuzz::CheckRoundTrip(bytes, DecodeStall, [](const std::vector<std::string>& lines) {
        std::vector<std::byte> out;
        EncodeStall(lines, out);
        return out;
      });
      break;
    default:
      fuzz::CheckRoundTrip(bytes, DecodeStatus, [type](const StatusMessage& message) {
        std::vector<std::byte> out;
        EncodeStatus(*type, message.why, out);
        return out;
      });
  }
  return 0;
}

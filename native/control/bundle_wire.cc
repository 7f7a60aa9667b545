#include "control/bundle_wire.h"

#include "control/wire_fields.h"

namespace rabit {
namespace {

constexpr size_t kPartBytesMax = SIZE_MAX;  // what is left of the message is the limit

constexpr auto kPart = [](auto& f, auto& part) {
  f.Ranks(part.ranks);
  f.Below(part.last_rank, kControlRanksMax);
  f.Number(part.ids_cycle);
  f.Data(part.message, kPartBytesMax);
};

constexpr auto kBundle = [](auto& f, auto& message) {
  f.Counts(message.buckets_done);
  f.Each(message.parts, kPart);
};

}  // namespace

void Encode(const BundleMessage& message, std::vector<std::byte>& out) {
  EncodeFields(ControlType::kBundle, message, kBundle, out);
}

Result<BundleMessage> DecodeBundle(ConstBytes bytes) {
  return DecodeFields<BundleMessage>(bytes, kBundle, "a bundle");
}

}  // namespace rabit

#include "control/bundle_wire.h"

#include "base/wire.h"
#include "control/agreement_wire.h"

namespace rabit {
namespace {

constexpr size_t kHeaderBytes = 2;

void WriteRankSet(WireWriter& to, const RankSet& ranks) {
  const std::vector<int> list = ranks.ranks();
  size_t runs = 0;
  for (size_t i = 0; i < list.size(); ++i) runs += i == 0 || list[i] != list[i - 1] + 1 ? 1 : 0;
  to.Varint(runs);
  int next = 0;
  for (size_t i = 0; i < list.size();) {
    size_t end = i + 1;
    while (end < list.size() && list[end] == list[end - 1] + 1) ++end;
    to.Varint(static_cast<uint64_t>(list[i] - next));
    to.Varint(end - i - 1);
    next = list[end - 1] + 1;
    i = end;
  }
}

RankSet ReadRankSet(WireReader& from) {
  RankSet ranks;
  const uint64_t runs = from.Varint();
  if (runs > from.left()) from.Fail();
  uint64_t next = 0;
  for (uint64_t i = 0; i < runs && from.ok(); ++i) {
    const uint64_t gap = from.Varint();
    const uint64_t more = from.Varint();
    if (gap >= kControlRanksMax || more >= kControlRanksMax ||
        next + gap + more >= kControlRanksMax) {
      from.Fail();
      break;
    }
    next += gap;
    for (const uint64_t end = next + more + 1; next < end; ++next)
      ranks.Add(static_cast<int>(next));
  }
  return ranks;
}

}  // namespace

void Encode(const BundleMessage& message, std::vector<std::byte>& out) {
  out.clear();
  WireWriter to(out);
  to.U8(kControlVersion);
  to.U8(static_cast<uint8_t>(ControlType::kBundle));
  WriteCounts(to, message.buckets_done);
  to.Varint(message.parts.size());
  for (const BundlePart& part : message.parts) {
    WriteRankSet(to, part.ranks);
    to.Varint(static_cast<uint64_t>(part.last_rank));
    to.Varint(part.ids_cycle);
    to.Varint(part.message.size());
    to.Raw(part.message);
  }
}

Result<BundleMessage> DecodeBundle(ConstBytes bytes) {
  WireReader from(bytes.subspan(std::min(kHeaderBytes, bytes.size())));
  BundleMessage message;
  message.buckets_done = ReadCounts(from);
  const uint64_t parts = from.Varint();
  if (parts > from.left()) from.Fail();
  for (uint64_t i = 0; i < parts && from.ok(); ++i) {
    BundlePart part;
    part.ranks = ReadRankSet(from);
    const uint64_t last_rank = from.Varint();
    if (last_rank >= kControlRanksMax) from.Fail();
    part.last_rank = static_cast<int>(last_rank);
    part.ids_cycle = from.Varint();
    const uint64_t length = from.Varint();
    if (length > from.left()) from.Fail();
    const ConstBytes raw = from.Raw(from.ok() ? static_cast<size_t>(length) : 0);
    part.message.assign(raw.begin(), raw.end());
    message.parts.push_back(std::move(part));
  }
  RABIT_RETURN_IF_ERROR(from.Finish("a bundle"));
  return message;
}

}  // namespace rabit

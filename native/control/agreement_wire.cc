#include "control/agreement_wire.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/wire.h"

namespace rabit {
namespace {

constexpr uint8_t kRuns = 0;
constexpr uint8_t kBits = 1;

uint64_t ZigZag(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
}
int64_t UnZigZag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

size_t VarintBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

void WriteHeader(WireWriter& to, ControlType type) {
  to.U8(kControlVersion);
  to.U8(static_cast<uint8_t>(type));
}

void WriteText(WireWriter& to, std::string_view text, size_t bytes_max) {
  text = text.substr(0, bytes_max);
  to.Varint(text.size());
  to.Raw(AsBytes(text));
}

std::string ReadText(WireReader& from, size_t bytes_max) {
  const uint64_t bytes = from.Varint();
  if (bytes > bytes_max) {
    from.Fail();
    return {};
  }
  return std::string(AsText(from.Raw(static_cast<size_t>(bytes))));
}

void WriteData(WireWriter& to, const std::vector<std::byte>& data) {
  to.Varint(data.size());
  to.Raw(data);
}

std::vector<std::byte> ReadData(WireReader& from) {
  const uint64_t bytes = from.Varint();
  if (bytes > kCarriedBytesMax) {
    from.Fail();
    return {};
  }
  const ConstBytes raw = from.Raw(static_cast<size_t>(bytes));
  return {raw.begin(), raw.end()};
}

// A number of elements of at least one byte each.
size_t ReadCount(WireReader& from) {
  const uint64_t count = from.Varint();
  if (count <= from.left()) return static_cast<size_t>(count);
  from.Fail();
  return 0;
}

int32_t ReadBelow(WireReader& from, int64_t limit) {
  const uint64_t value = from.Varint();
  if (value < static_cast<uint64_t>(limit)) return static_cast<int32_t>(value);
  from.Fail();
  return 0;
}

// From -1 to limit - 1.
int32_t ReadOptional(WireReader& from, int64_t limit) { return ReadBelow(from, limit + 1) - 1; }

int32_t ReadSigned32(WireReader& from) {
  const int64_t value = UnZigZag(from.Varint());
  if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max())
    return static_cast<int32_t>(value);
  from.Fail();
  return 0;
}

constexpr int64_t kIdSpace = int64_t{1} << 31;  // groups and backends

void WriteExtents(WireWriter& to, const std::vector<int64_t>& extents) {
  to.Varint(extents.size());
  for (int64_t extent : extents) to.Varint(static_cast<uint64_t>(extent));
}

// Non-negative, with a sum that fits.
std::vector<int64_t> ReadExtents(WireReader& from) {
  std::vector<int64_t> extents(ReadCount(from));
  int64_t sum = 0;
  for (int64_t& extent : extents) {
    extent = static_cast<int64_t>(from.Varint());
    if (extent < 0 || __builtin_add_overflow(sum, extent, &sum)) from.Fail();
  }
  return extents;
}

std::vector<int> ReadRanks(WireReader& from) {
  std::vector<int> ranks(ReadCount(from));
  for (int& rank : ranks) rank = ReadBelow(from, kControlRanksMax);
  return ranks;
}

void WriteRanks(WireWriter& to, const std::vector<int>& ranks) {
  to.Varint(ranks.size());
  for (int rank : ranks) to.Varint(static_cast<uint64_t>(rank));
}

// Calls f(first, length) for every run of consecutive ids.
template <class F>
void ForEachRun(const std::vector<TensorId>& ids, F f) {
  for (size_t i = 0; i < ids.size();) {
    size_t end = i + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    f(ids[i], static_cast<int32_t>(end - i));
    i = end;
  }
}

void WriteIds(WireWriter& to, const std::vector<TensorId>& ids) {
  to.Varint(ids.size());
  if (ids.empty()) return;
  size_t run_bytes = 0;
  TensorId next = 0;
  ForEachRun(ids, [&](TensorId first, int32_t length) {
    run_bytes += VarintBytes(static_cast<uint64_t>(first - next)) +
                 VarintBytes(static_cast<uint64_t>(length - 1));
    next = first + length;
  });
  const size_t bit_bytes = static_cast<size_t>(ids.back()) / 8 + 1;
  if (run_bytes <= bit_bytes) {
    to.U8(kRuns);
    next = 0;
    ForEachRun(ids, [&](TensorId first, int32_t length) {
      to.Varint(static_cast<uint64_t>(first - next));
      to.Varint(static_cast<uint64_t>(length - 1));
      next = first + length;
    });
    return;
  }
  to.U8(kBits);
  std::vector<std::byte> bits(bit_bytes);
  for (TensorId id : ids) bits[static_cast<size_t>(id) / 8] |= std::byte{1} << (id % 8);
  to.Varint(bits.size());
  to.Raw(bits);
}

std::vector<TensorId> ReadBits(WireReader& from, size_t count) {
  std::vector<TensorId> ids;
  const size_t bytes = ReadCount(from);
  if (bytes > static_cast<size_t>(kTensorIdLimit) / 8 || count > bytes * 8) {
    from.Fail();
    return ids;
  }
  ids.reserve(count);
  const ConstBytes bits = from.Raw(bytes);
  for (size_t i = 0; i < bits.size(); ++i) {
    for (unsigned byte = static_cast<unsigned>(bits[i]); byte != 0; byte &= byte - 1)
      ids.push_back(static_cast<TensorId>(i * 8) + __builtin_ctz(byte));
  }
  if (ids.size() != count) from.Fail();
  return ids;
}

std::vector<TensorId> ReadIds(WireReader& from) {
  std::vector<TensorId> ids;
  const auto count = static_cast<size_t>(ReadBelow(from, kTensorIdLimit + 1));
  if (count == 0) return ids;
  const uint8_t form = from.U8();
  if (form == kBits) return ReadBits(from, count);
  if (form != kRuns) from.Fail();
  int64_t next = 0;
  while (from.ok() && ids.size() < count) {
    next += ReadBelow(from, kTensorIdLimit);
    const int64_t end = next + ReadBelow(from, kTensorIdLimit) + 1;
    if (!from.ok() || end > kTensorIdLimit ||
        ids.size() + static_cast<size_t>(end - next) > count) {
      from.Fail();
      break;
    }
    for (; next < end; ++next) ids.push_back(static_cast<TensorId>(next));
  }
  return ids;
}

void WriteSignature(WireWriter& to, const Signature& signature) {
  to.U8(static_cast<uint8_t>(signature.kind));
  to.U8(static_cast<uint8_t>(signature.dtype));
  to.U8(static_cast<uint8_t>(signature.op));
  WriteExtents(to, signature.shape);
  to.Varint(static_cast<uint64_t>(signature.root + 1));
  to.F64(signature.prescale);
  to.F64(signature.postscale);
  to.Varint(ZigZag(signature.priority));
  to.Varint(static_cast<uint64_t>(signature.group));
  WriteText(to, signature.codec, kCodecBytesMax);
  to.Varint(static_cast<uint64_t>(signature.backend + 1));
  to.U8(static_cast<uint8_t>(signature.device_kind));
  WriteExtents(to, signature.splits);
  to.Varint(static_cast<uint64_t>(signature.even_parts));
}

std::vector<int64_t> ReadShape(WireReader& from) {
  std::vector<int64_t> shape = ReadExtents(from);
  int64_t product = 1;
  for (int64_t extent : shape) {
    // Zero extents do not excuse an overflow of the others: a later shape may lose the zero.
    if (__builtin_mul_overflow(product, std::max<int64_t>(extent, 1), &product)) from.Fail();
  }
  if (shape.size() > kDimensionsMax) from.Fail();
  return shape;
}

Signature ReadSignature(WireReader& from) {
  Signature signature;
  const std::optional<Kind> kind = KindFrom(from.U8());
  const std::optional<DType> dtype = DTypeFrom(from.U8());
  const std::optional<ReduceOp> op = ReduceOpFrom(from.U8());
  if (!kind || !dtype || !op) {
    from.Fail();
    return signature;
  }
  signature.kind = *kind;
  signature.dtype = *dtype;
  signature.op = *op;
  signature.shape = ReadShape(from);
  signature.root = ReadOptional(from, kControlRanksMax);
  signature.prescale = from.F64();
  signature.postscale = from.F64();
  signature.priority = ReadSigned32(from);
  signature.group = ReadBelow(from, kIdSpace);
  signature.codec = ReadText(from, kCodecBytesMax);
  signature.backend = ReadOptional(from, kIdSpace - 1);
  signature.device_kind = static_cast<DeviceKind>(from.U8());
  if (signature.device_kind != DeviceKind::kCpu && signature.device_kind != DeviceKind::kCuda)
    from.Fail();
  signature.splits = ReadExtents(from);
  signature.even_parts = ReadBelow(from, kControlRanksMax + 1);
  return signature;
}

void WriteKey(WireWriter& to, const TensorKey& key) {
  WriteText(to, key.name, kNameBytesMax);
  to.Varint(static_cast<uint64_t>(key.group));
  to.Varint(static_cast<uint64_t>(key.sender + 1));
  to.Varint(static_cast<uint64_t>(key.receiver + 1));
}

TensorKey ReadKey(WireReader& from) {
  TensorKey key;
  key.name = ReadText(from, kNameBytesMax);
  key.group = ReadBelow(from, kIdSpace);
  key.sender = ReadOptional(from, kControlRanksMax);
  key.receiver = ReadOptional(from, kControlRanksMax);
  return key;
}

void WriteStatus(WireWriter& to, const Status& why) {
  to.U8(static_cast<uint8_t>(why.code()));
  to.Varint(static_cast<uint64_t>(why.culprit() + 1));
  WriteText(to, why.message(), kStatusBytesMax);
}

Status ReadStatus(WireReader& from) {
  const uint8_t code = from.U8();
  if (code > static_cast<uint8_t>(Code::kInternal)) from.Fail();
  const int32_t culprit = ReadOptional(from, kControlRanksMax);
  std::string message = ReadText(from, kStatusBytesMax);
  if (!from.ok()) return {};
  return Status(static_cast<Code>(code), std::move(message)).WithCulprit(culprit);
}

void WriteReady(WireWriter& to, const ReadyReference& ready) {
  to.Varint(static_cast<uint64_t>(ready.id));
  WriteExtents(to, ready.extents);
  WriteRanks(to, ready.joined);
  WriteData(to, ready.data);
}

ReadyReference ReadReady(WireReader& from) {
  ReadyReference ready;
  ready.id = ReadBelow(from, kTensorIdLimit);
  ready.extents = ReadExtents(from);
  ready.joined = ReadRanks(from);
  ready.data = ReadData(from);
  return ready;
}

void WriteTunables(WireWriter& to, const Tunables& tunables) {
  to.Varint(ZigZag(tunables.partition_bytes));
  to.Varint(ZigZag(tunables.fusion_bytes));
  to.Varint(ZigZag(tunables.credit_bytes));
  to.Varint(static_cast<uint64_t>(tunables.lanes + 1));
}

Tunables ReadTunables(WireReader& from) {
  Tunables tunables;
  for (int64_t* bytes :
       {&tunables.partition_bytes, &tunables.fusion_bytes, &tunables.credit_bytes}) {
    *bytes = UnZigZag(from.Varint());
    if (*bytes < -1) from.Fail();
  }
  tunables.lanes = ReadOptional(from, kLanesMax + 1);
  return tunables;
}

// Elements one by one, so that a short message costs no more memory than it has bytes.
template <class T, class Read>
void ReadEach(WireReader& from, std::vector<T>& to, Read read) {
  for (size_t left = ReadCount(from); left > 0 && from.ok(); --left) to.push_back(read(from));
}

WireReader Body(ConstBytes message) {
  return WireReader(message.subspan(std::min<size_t>(2, message.size())));
}

}  // namespace

void WriteCounts(WireWriter& to, const BucketCounts& counts) {
  size_t last = counts.of.size() - 1;
  while (last > 0 && counts.of[last] == 0) --last;
  to.Varint(counts.of[0] << 2 | last);
  for (size_t i = 1; i <= last; ++i) to.Varint(counts.of[i]);
}

BucketCounts ReadCounts(WireReader& from) {
  const uint64_t first = from.Varint();
  BucketCounts counts = first >> 2;
  for (size_t i = 1; i <= (first & 3); ++i) counts.of[i] = from.Varint();
  return counts;
}

void Encode(const AnnounceMessage& message, std::vector<std::byte>& out) {
  out.clear();
  WireWriter to(out);
  WriteHeader(to, ControlType::kAnnounce);
  to.Varint(message.seen_cycle);
  WriteCounts(to, message.buckets_done);
  to.U8(static_cast<uint8_t>((message.wants_stop ? 1 : 0) | (message.joins ? 2 : 0) |
                             (message.doubts ? 4 : 0)));
  WriteIds(to, message.cached);
  to.Varint(message.variable.size());
  for (const VariablePart& part : message.variable) {
    to.Varint(static_cast<uint64_t>(part.id));
    to.Varint(static_cast<uint64_t>(part.rows));
    WriteExtents(to, part.splits);
    WriteData(to, part.data);
  }
  to.Varint(message.full.size());
  for (const Announcement::Entry& entry : message.full) {
    WriteText(to, entry.name, kNameBytesMax);
    WriteSignature(to, entry.signature);
    WriteData(to, entry.data);
  }
}

Result<AnnounceMessage> DecodeAnnounce(ConstBytes bytes) {
  WireReader from = Body(bytes);
  AnnounceMessage message;
  message.seen_cycle = from.Varint();
  message.buckets_done = ReadCounts(from);
  const uint8_t bits = from.U8();
  message.wants_stop = (bits & 1) != 0;
  message.joins = (bits & 2) != 0;
  message.doubts = (bits & 4) != 0;
  message.cached = ReadIds(from);
  ReadEach(from, message.variable, [](WireReader& in) {
    VariablePart part;
    part.id = ReadBelow(in, kTensorIdLimit);
    part.rows = static_cast<int64_t>(in.Varint());
    if (part.rows < 0) in.Fail();
    part.splits = ReadExtents(in);
    part.data = ReadData(in);
    return part;
  });
  ReadEach(from, message.full, [](WireReader& in) {
    Announcement::Entry entry;
    entry.name = ReadText(in, kNameBytesMax);
    entry.signature = ReadSignature(in);
    entry.data = ReadData(in);
    return entry;
  });
  RABIT_RETURN_IF_ERROR(from.Finish("an announcement"));
  return message;
}

void Encode(const AgreeMessage& message, std::vector<std::byte>& out) {
  out.clear();
  WireWriter to(out);
  WriteHeader(to, ControlType::kAgree);
  to.Varint(message.cycle);
  WriteCounts(to, message.buckets_done);
  to.Varint(static_cast<uint64_t>(message.last_joined + 1));
  to.U8(static_cast<uint8_t>((message.stop ? 1 : 0) | (message.tunables ? 2 : 0) |
                             (message.compares ? 4 : 0)));
  WriteIds(to, message.evicted);
  WriteIds(to, message.plain);
  to.Varint(message.references.size());
  for (const ReadyReference& ready : message.references) WriteReady(to, ready);
  to.Varint(message.definitions.size());
  for (const Definition& definition : message.definitions) {
    WriteReady(to, definition.ready);
    WriteKey(to, definition.key);
    WriteSignature(to, definition.signature);
  }
  to.Varint(message.rejected.size());
  for (const RejectMessage& rejected : message.rejected) {
    WriteKey(to, rejected.key);
    WriteStatus(to, rejected.why);
    to.U8(rejected.fails_late_members ? 1 : 0);
  }
  if (message.tunables) WriteTunables(to, *message.tunables);
}

Result<AgreeMessage> DecodeAgree(ConstBytes bytes) {
  WireReader from = Body(bytes);
  AgreeMessage message;
  message.cycle = from.Varint();
  message.buckets_done = ReadCounts(from);
  message.last_joined = ReadOptional(from, kControlRanksMax);
  const uint8_t bits = from.U8();
  message.stop = (bits & 1) != 0;
  message.compares = (bits & 4) != 0;
  message.evicted = ReadIds(from);
  message.plain = ReadIds(from);
  ReadEach(from, message.references, [](WireReader& in) { return ReadReady(in); });
  ReadEach(from, message.definitions, [](WireReader& in) {
    Definition definition;
    definition.ready = ReadReady(in);
    definition.key = ReadKey(in);
    definition.signature = ReadSignature(in);
    return definition;
  });
  ReadEach(from, message.rejected, [](WireReader& in) {
    RejectMessage rejected;
    rejected.key = ReadKey(in);
    rejected.why = ReadStatus(in);
    rejected.fails_late_members = (in.U8() & 1) != 0;
    if (rejected.why.ok()) in.Fail();
    return rejected;
  });
  if ((bits & 2) != 0) message.tunables = ReadTunables(from);
  RABIT_RETURN_IF_ERROR(from.Finish("an agreement"));
  return message;
}

void Encode(const GroupMessage& message, std::vector<std::byte>& out) {
  out.clear();
  WireWriter to(out);
  WriteHeader(to, ControlType::kAddGroup);
  to.Varint(static_cast<uint64_t>(message.id));
  WriteRanks(to, message.ranks);
}

Result<GroupMessage> DecodeGroup(ConstBytes bytes) {
  WireReader from = Body(bytes);
  GroupMessage message;
  message.id = ReadBelow(from, kIdSpace);
  message.ranks = ReadRanks(from);
  RABIT_RETURN_IF_ERROR(from.Finish("a group"));
  return message;
}

void Encode(const RefusalMessage& message, std::vector<std::byte>& out) {
  out.clear();
  WireWriter to(out);
  WriteHeader(to, ControlType::kRefuse);
  to.Varint(message.seen_cycle);
  WriteKey(to, message.key);
  WriteStatus(to, message.why);
}

Result<RefusalMessage> DecodeRefusal(ConstBytes bytes) {
  WireReader from = Body(bytes);
  RefusalMessage message;
  message.seen_cycle = from.Varint();
  message.key = ReadKey(from);
  message.why = ReadStatus(from);
  RABIT_RETURN_IF_ERROR(from.Finish("a refusal"));
  if (message.why.ok()) return Internal("a refusal came without a reason");
  return message;
}

void EncodeStatus(ControlType type, const Status& why, std::vector<std::byte>& out) {
  out.clear();
  WireWriter to(out);
  WriteHeader(to, type);
  WriteStatus(to, why);
}

Result<StatusMessage> DecodeStatus(ConstBytes bytes) {
  WireReader from = Body(bytes);
  StatusMessage message{ReadStatus(from)};
  RABIT_RETURN_IF_ERROR(from.Finish("a cause of failure"));
  if (message.why.ok()) return Internal("a cause of failure came without a failure");
  return message;
}

void EncodeStall(const std::vector<std::string>& lines, std::vector<std::byte>& out) {
  out.clear();
  WireWriter to(out);
  WriteHeader(to, ControlType::kStall);
  to.Varint(lines.size());
  for (const std::string& line : lines) WriteText(to, line, kStatusBytesMax);
}

Result<std::vector<std::string>> DecodeStall(ConstBytes bytes) {
  WireReader from = Body(bytes);
  std::vector<std::string> lines;
  ReadEach(from, lines, [](WireReader& in) { return ReadText(in, kStatusBytesMax); });
  RABIT_RETURN_IF_ERROR(from.Finish("a stall report"));
  return lines;
}

Result<ControlType> TypeOf(ConstBytes message) {
  if (message.size() < 2) return Internal("a control message of fewer than 2 bytes");
  const auto version = static_cast<uint8_t>(message[0]);
  if (version != kControlVersion) {
    return Unsupported("it speaks version " + std::to_string(version) +
                       " of the control format, this rank version " +
                       std::to_string(kControlVersion) +
                       ". Install the same version of rabit on every host.");
  }
  const auto type = static_cast<uint8_t>(message[1]);
  if (type < 1 || type > static_cast<uint8_t>(ControlType::kRefuse))
    return Internal("a control message of unknown type " + std::to_string(type));
  return static_cast<ControlType>(type);
}

}  // namespace rabit

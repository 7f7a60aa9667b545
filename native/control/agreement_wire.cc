#include "control/agreement_wire.h"

#include "control/wire_fields.h"

// Each format is one list of fields, which a writer takes and a reader gives.  F: FieldWriter with
// a constant message, or FieldReader.
namespace rabit {
namespace {

std::optional<DeviceKind> DeviceKindFrom(int32_t value) {
  const auto kind = static_cast<DeviceKind>(value);
  if (kind != DeviceKind::kCpu && kind != DeviceKind::kCuda) return std::nullopt;
  return kind;
}

template <class Message>
Result<Message> Reasoned(Result<Message> message, const char* without) {
  // Without a reason the receiver would take a failure for success and go on.
  if (message.ok() && message->why.ok()) return Internal(without);
  return message;
}

constexpr auto kSignature = [](auto& f, auto& signature) {
  f.Named(signature.kind, KindFrom);
  f.Named(signature.dtype, DTypeFrom);
  f.Named(signature.op, ReduceOpFrom);
  f.Shape(signature.shape);
  f.Below(signature.axis_order, kIdSpace);
  f.Optional(signature.root, kControlRanksMax);
  f.Real(signature.prescale);
  f.Real(signature.postscale);
  f.Signed(signature.priority);
  f.Below(signature.group, kIdSpace);
  f.Text(signature.codec, kCodecBytesMax);
  f.Optional(signature.backend, kIdSpace - 1);
  f.Named(signature.device_kind, DeviceKindFrom);
  f.Extents(signature.splits);
  f.Below(signature.even_parts, kControlRanksMax + 1);
};

constexpr auto kKey = [](auto& f, auto& key) {
  f.Text(key.name, kNameBytesMax);
  f.Below(key.group, kIdSpace);
  f.Optional(key.sender, kControlRanksMax);
  f.Optional(key.receiver, kControlRanksMax);
};

constexpr auto kVariable = [](auto& f, auto& part) {
  f.Below(part.id, kTensorIdLimit);
  f.Rows(part.rows);
  f.Extents(part.splits);
  f.Data(part.data, kCarriedBytesMax);
};

constexpr auto kEntry = [](auto& f, auto& entry) {
  f.Text(entry.name, kNameBytesMax);
  kSignature(f, entry.signature);
  f.Data(entry.data, kCarriedBytesMax);
};

constexpr auto kAnnounce = [](auto& f, auto& message) {
  f.Number(message.seen_cycle);
  f.Counts(message.buckets_done);
  f.Flags(message.wants_stop, message.joins, message.doubts);
  f.Ids(message.cached);
  f.Each(message.variable, kVariable);
  f.Each(message.full, kEntry);
};

constexpr auto kReady = [](auto& f, auto& ready) {
  f.Below(ready.id, kTensorIdLimit);
  f.Extents(ready.extents);
  f.Ranks(ready.joined);
  f.Data(ready.data, kCarriedBytesMax);
};

constexpr auto kDefinition = [](auto& f, auto& definition) {
  kReady(f, definition.ready);
  kKey(f, definition.key);
  kSignature(f, definition.signature);
};

constexpr auto kRejection = [](auto& f, auto& rejected) {
  kKey(f, rejected.key);
  f.Cause(rejected.why);
  f.Require(!rejected.why.ok());
  f.Flags(rejected.fails_late_members);
};

constexpr auto kTunables = [](auto& f, auto& tunables) {
  f.Signed(tunables.partition_bytes, -1);
  f.Signed(tunables.fusion_bytes, -1);
  f.Signed(tunables.credit_bytes, -1);
  f.Optional(tunables.lanes, kLanesMax + 1);
};

constexpr auto kBackendFailure = [](auto& f, auto& failure) {
  f.Below(failure.backend, kIdSpace);
  f.Cause(failure.why);
  f.Require(!failure.why.ok());
};

constexpr auto kAgree = [](auto& f, auto& message) {
  f.Number(message.cycle);
  f.Counts(message.buckets_done);
  f.Optional(message.last_joined, kControlRanksMax);
  bool has_tunables = message.tunables.has_value();
  bool has_failure = message.failed_backend.has_value();
  f.Flags(message.stop, has_tunables, message.compares, has_failure);
  f.Ids(message.evicted);
  f.Ids(message.plain);
  f.Each(message.references, kReady);
  f.Each(message.definitions, kDefinition);
  f.Each(message.rejected, kRejection);
  f.If(has_tunables, message.tunables, kTunables);
  f.If(has_failure, message.failed_backend, kBackendFailure);
};

constexpr auto kRefusal = [](auto& f, auto& message) {
  f.Number(message.seen_cycle);
  kKey(f, message.key);
  f.Cause(message.why);
};

constexpr auto kStatus = [](auto& f, auto& message) { f.Cause(message.why); };

constexpr auto kStall = [](auto& f, auto& lines) {
  f.Each(lines, [](auto& each, auto& line) { each.Text(line, kStatusBytesMax); });
};

}  // namespace

void Encode(const AnnounceMessage& message, std::vector<std::byte>& out) {
  EncodeFields(ControlType::kAnnounce, message, kAnnounce, out);
}

Result<AnnounceMessage> DecodeAnnounce(ConstBytes bytes) {
  return DecodeFields<AnnounceMessage>(bytes, kAnnounce, "an announcement");
}

void Encode(const AgreeMessage& message, std::vector<std::byte>& out) {
  EncodeFields(ControlType::kAgree, message, kAgree, out);
}

Result<AgreeMessage> DecodeAgree(ConstBytes bytes) {
  return DecodeFields<AgreeMessage>(bytes, kAgree, "an agreement");
}

void Encode(const RefusalMessage& message, std::vector<std::byte>& out) {
  EncodeFields(ControlType::kRefuse, message, kRefusal, out);
}

Result<RefusalMessage> DecodeRefusal(ConstBytes bytes) {
  return Reasoned(DecodeFields<RefusalMessage>(bytes, kRefusal, "a refusal"),
                  "a refusal came without a reason");
}

void Encode(const BackendFailure& message, std::vector<std::byte>& out) {
  EncodeFields(ControlType::kBackendFailed, message, kBackendFailure, out);
}

Result<BackendFailure> DecodeBackendFailure(ConstBytes bytes) {
  return DecodeFields<BackendFailure>(bytes, kBackendFailure, "the failure of a backend");
}

void EncodeStatus(ControlType type, const Status& why, std::vector<std::byte>& out) {
  EncodeFields(type, StatusMessage{why}, kStatus, out);
}

Result<StatusMessage> DecodeStatus(ConstBytes bytes) {
  return Reasoned(DecodeFields<StatusMessage>(bytes, kStatus, "a cause of failure"),
                  "a cause of failure came without a failure");
}

void EncodeStall(const std::vector<std::string>& lines, std::vector<std::byte>& out) {
  EncodeFields(ControlType::kStall, lines, kStall, out);
}

Result<std::vector<std::string>> DecodeStall(ConstBytes bytes) {
  return DecodeFields<std::vector<std::string>>(bytes, kStall, "a stall report");
}

Result<ControlType> TypeOf(ConstBytes message) {
  if (message.size() < 2) return Internal("a control message of fewer than 2 bytes");
  const auto version = static_cast<uint8_t>(message[0]);
  // The first two bytes mean the same in every version, so that ranks of different ones can say so.
  if (version != kControlVersion) {
    return Unsupported("it speaks version " + std::to_string(version) +
                       " of the control format, this rank version " +
                       std::to_string(kControlVersion) +
                       ". Install the same version of rabit on every host.");
  }
  const auto type = static_cast<uint8_t>(message[1]);
  if (type < 1 || type > static_cast<uint8_t>(ControlType::kBackendFailed))
    return Internal("a control message of unknown type " + std::to_string(type));
  return static_cast<ControlType>(type);
}

}  // namespace rabit

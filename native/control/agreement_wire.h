// The wire format of the negotiation: version, type, body; little-endian, bounded, no padding.
//
// Steady state is ids: a set of ids is either a bit vector or a list of runs, whichever is smaller.
// A frozen example of every message lies in testdata/; a change that alters them needs a new
// kControlVersion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bucket_counts.h"
#include "base/bytes.h"
#include "base/result.h"
#include "control/agreement.h"
#include "control/tensor_key.h"

namespace rabit {

inline constexpr uint8_t kControlVersion = 11;

// Bounds of what a decoder accepts.
inline constexpr size_t kNameBytesMax = 1024;
inline constexpr size_t kCodecBytesMax = 256;
inline constexpr int32_t kTensorIdLimit = 1 << 20;
inline constexpr int32_t kControlRanksMax = 1 << 16;
inline constexpr size_t kDimensionsMax = 64;
inline constexpr size_t kStatusBytesMax = 16 << 10;
inline constexpr int32_t kLanesMax = 64;

static_assert(kLaneClassesMax <= 4, "FieldWriter::Counts has two bits for the classes");

enum class ControlType : uint8_t {
  kAnnounce = 1,  // to rank 0
  kAbandon = 3,
  kAgree = 4,  // from rank 0
  kAbort = 5,
  kStall = 6,
  kBundle = 7,   // to a parent in the tree: bundle_wire.h
  kLost = 8,     // to a parent: a rank below is gone
  kDigest = 9,   // to rank 0: schedule_digest.h
  kRefuse = 10,  // to rank 0
  kBackendFailed = 11,
};

// What may differ between ranks and steps, for a tensor whose signature is otherwise unchanged.
struct VariablePart {
  TensorId id = -1;
  int64_t rows = 0;                  // extent 0
  std::vector<int64_t> splits;       // alltoall; scatter on its root: as in Signature
  std::vector<std::byte> data = {};  // the input of a small collective; may be empty
};

struct AnnounceMessage {
  uint64_t seen_cycle = 0;  // the newest agreement this rank knows: ids mean what they meant then
  BucketCounts buckets_done;
  bool wants_stop = false;
  bool joins = false;
  bool doubts = false;
  std::vector<TensorId> cached;  // ascending; the signature is the one of the last agreement
  std::vector<VariablePart> variable;
  std::vector<Announcement::Entry> full;
};

struct ReadyReference {
  TensorId id = -1;
  std::vector<int64_t> extents;
  std::vector<int> joined;
  std::vector<std::byte> data = {};  // the result, if all that have data have brought it
};

// A new id, or a new signature of an old one.
struct Definition {
  ReadyReference ready;
  TensorKey key;
  Signature signature;
};

struct RejectMessage {
  TensorKey key;
  Status why;
  // A member that has not announced this round yet fails its next announcement, so that every
  // rank sees the failure once.
  bool fails_late_members = false;
};

struct AgreeMessage {
  uint64_t cycle = 0;
  BucketCounts buckets_done;
  int32_t last_joined = -1;
  bool stop = false;
  bool compares = false;
  std::optional<Tunables> tunables;
  std::optional<BackendFailure> failed_backend;
  std::vector<TensorId> evicted;  // applied first
  std::vector<TensorId> plain;    // ascending; ready, nothing to add
  std::vector<ReadyReference> references;
  std::vector<Definition> definitions;
  std::vector<RejectMessage> rejected;
};

// A rank has turned its own tensor down, and will not announce this round of it.
struct RefusalMessage {
  uint64_t seen_cycle = 0;
  TensorKey key;
  Status why;
};

// Each replaces the content of `out`.
void Encode(const AnnounceMessage& message, std::vector<std::byte>& out);
void Encode(const AgreeMessage& message, std::vector<std::byte>& out);
void Encode(const RefusalMessage& message, std::vector<std::byte>& out);
void Encode(const BackendFailure& message, std::vector<std::byte>& out);
void EncodeStatus(ControlType type, const Status& why, std::vector<std::byte>& out);
void EncodeStall(const std::vector<std::string>& lines, std::vector<std::byte>& out);

// kUnsupported: another wire version.
Result<ControlType> TypeOf(ConstBytes message);
Result<AnnounceMessage> DecodeAnnounce(ConstBytes message);
Result<AgreeMessage> DecodeAgree(ConstBytes message);
Result<RefusalMessage> DecodeRefusal(ConstBytes message);
Result<BackendFailure> DecodeBackendFailure(ConstBytes message);
// The first error is about the message; the second is its content.
struct StatusMessage {
  Status why;
};
Result<StatusMessage> DecodeStatus(ConstBytes message);
Result<std::vector<std::string>> DecodeStall(ConstBytes message);

}  // namespace rabit

// What workers and summation servers tell each other besides the data.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/epilogue.h"
#include "base/ids.h"
#include "base/measured.h"
#include "base/result.h"
#include "base/status.h"

namespace rabit {

inline constexpr uint32_t kPsWireVersion = 6;

// A worker has at most so many chunks with a server that it has not got the sum of, so a server
// needs memory for no more.  It also bounds how far workers drift apart: connections that share a
// link get uneven shares of it, a sum waits for the slowest, and what the others are ahead by is
// pushed while nothing can be pulled.
inline constexpr int64_t kPsChunksInFlight = 4;

// Of one chunk of one of `members` workers: the more of them send one at once, the smaller it is
// (kPsChunksInFlight).
inline int64_t PsChunkBytesMax(int members) {
  return std::clamp<int64_t>((4 << 20) / std::max(members, 1), kPsChunkBytesMin, kPsChunkBytesMax);
}
// No sum comes before every member's chunk for every server has passed a link.  Below some
// 400 Mbit/s smaller chunks are worth what they cost; above, the processors are what is waited for.
inline int64_t PsChunkBytesBest(int members, double bytes_per_second) {
  constexpr double kSecondsOnLink = 2e-3;
  const auto most = static_cast<double>(PsChunkBytesMax(members));
  const double passing = std::min(bytes_per_second * kSecondsOnLink, most);
  return std::max(static_cast<int64_t>(passing), kPsChunkBytesMin);
}

// What becomes of a push.
enum class PushMode : int32_t {
  kSum = 0,    // all members push, and get the sum; nothing is kept
  kAdd = 1,    // one worker adds to what is kept, and gets that
  kFill = 2,   // one worker gives what is kept, if nothing is yet, and gets that
  kClock = 3,  // one worker says or asks how far it is: StepClock as two numbers, and its lead
  kCoded = 4,  // as kSum, of encodings: each chunk is what an EncodingAdder adds
  kEnd = 5,    // the group pushes no more: nothing follows the header
};

// What the members of a group are about to push to one server, said by the first of them: the data
// of all comes with `tag`, in chunks of `chunk_count` elements, and the sums go back with tag + 1.
// In place of a chunk of an update that does not fit what is kept, nothing goes back: a message
// without bytes.
struct PushHeader {
  Tag tag = 0;
  int64_t count = 0;  // elements
  int64_t chunk_count = 1;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  PushMode mode = PushMode::kSum;
  uint64_t key = 0;        // of what is kept
  Epilogue epilogue = {};  // of kSum: what is left of the sum, done by whoever adds up

  bool operator==(const PushHeader&) const = default;
  uint64_t chunks() const { return static_cast<uint64_t>((count - 1) / chunk_count + 1); }
  size_t bytes_of(uint64_t chunk) const {
    const int64_t before = static_cast<int64_t>(chunk) * chunk_count;
    return static_cast<size_t>(std::min(chunk_count, count - before)) * SizeOf(dtype);
  }
};
using PushHeaderBytes = std::array<std::byte, 60>;

PushHeaderBytes Encode(const PushHeader& header);
// Of a group of so many members; kInternal if it cannot be.
Result<PushHeader> DecodePushHeader(const PushHeaderBytes& bytes, int members);

// What rank 0 says of a group before the first push: this, then the ranks as 32-bit numbers.
struct GroupHeader {
  GroupId id = kWorld;
  int32_t members = 0;

  bool operator==(const GroupHeader&) const = default;
};
using GroupHeaderBytes = std::array<std::byte, 12>;

GroupHeaderBytes Encode(const GroupHeader& header);
// In a job of so many workers.
Result<GroupHeader> DecodeGroupHeader(const GroupHeaderBytes& bytes, int workers);

// How far the pushes of a group on one stream to one place are.
struct PushPosition {
  uint64_t push = 0;
  uint64_t chunk = 0;  // of that push

  auto operator<=>(const PushPosition&) const = default;
};
using PushPositionBytes = std::array<std::byte, 16>;
// The answer of a server that does not have what a worker lacks.
inline constexpr PushPosition kNowhere{~uint64_t{0}, ~uint64_t{0}};

PushPositionBytes Encode(const PushPosition& at);
PushPosition DecodePushPosition(const PushPositionBytes& bytes);

// A position, and the push that it is in.  A worker says it to the server that takes over a place:
// the first chunk of which it has no sum; and a server to the one behind it: the chunk that
// follows.
struct PlacedPush {
  PushHeader header;
  PushPosition at;

  bool operator==(const PlacedPush&) const = default;
  // Where the place is after this chunk.
  PushPosition next() const {
    return at.chunk + 1 < header.chunks() ? PushPosition{at.push, at.chunk + 1}
                                          : PushPosition{at.push + 1, 0};
  }
};
using PlacedPushBytes = std::array<std::byte, 76>;

PlacedPushBytes Encode(const PlacedPush& placed);
Result<PlacedPush> DecodePlacedPush(const PlacedPushBytes& bytes, int members);

// The place of a server is what it sums while all servers live.  Chunks for the place of server s
// come with the tag of the tensor plus 2 s, and the sums go back with the next one; so one server
// can have several places.  There are at most 4096.
inline Tag PushTag(Tag tensor, int place) { return tensor + 2 * static_cast<Tag>(place); }

// Messages that are no data, for each place.
enum class PlaceStep : Tag {
  kHeader = 0x8000,    // the first member to a server: PushHeader
  kResume = 0x9000,    // a worker to a server that takes over: PlacedPush
  kAnswer = 0xa000,    // and back, from where chunks must be pushed: PushPosition
  kCopy = 0xb000,      // a server to the one behind it: PlacedPush
  kCopyData = 0xc000,  // its sum, or what a worker has pushed
  kCopyAck = 0xd000,   // and back: PushPosition
  kLiving = 0xe000,    // is never sent; whoever receives it hears when the other one is lost
};
inline Tag PlaceTag(int stream, GroupId group, PlaceStep step, int place) {
  return MakeTag(stream, static_cast<uint32_t>(group)) | static_cast<Tag>(step) |
         static_cast<Tag>(place);
}
inline Tag GroupHeaderTag() { return MakeTag(0, 0) | 0xffff; }

// Whether an operation with `rank` has failed because that one is lost.
inline bool IsLossOf(const Status& status, int rank) {
  return status.code() == Code::kPeerLost && status.culprit() == rank;
}

}  // namespace rabit

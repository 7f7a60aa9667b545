// What workers and summation servers tell each other besides the data.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "base/result.h"

namespace rabit {

inline constexpr uint32_t kPsWireVersion = 3;

// A worker has at most so many chunks with a server that it has not got the sum of, so a server
// needs memory for no more.  It also bounds how far workers drift apart: connections that share a
// link get uneven shares of it, a sum waits for the slowest, and what the others are ahead by is
// pushed while nothing can be pulled.
inline constexpr int64_t kPsChunksInFlight = 4;

// Of one chunk of one of `members` workers: the more of them send one at once, the smaller it is.
// More than what TCP copies before it sends, and not much more: see kPsChunksInFlight.
inline constexpr int64_t kPsChunkBytesMin = 32 << 10;
inline int64_t PsChunkBytesMax(int members) {
  return std::clamp<int64_t>((4 << 20) / std::max(members, 1), kPsChunkBytesMin, 96 << 10);
}

// What becomes of a push.
enum class PushMode : int32_t {
  kSum = 0,    // all members push, and get the sum; nothing is kept
  kAdd = 1,    // one worker adds to what is kept, and gets that
  kFill = 2,   // one worker gives what is kept, if nothing is yet, and gets that
  kClock = 3,  // one worker says how far it is: StepClock and StepLead as two numbers
};

// What the members of a group are about to push to one server, said by the first of them: the data
// of all comes with `tag`, in chunks of `chunk_count` elements, and the sums go back with tag + 1.
struct PushHeader {
  Tag tag = 0;
  int64_t count = 0;  // elements
  int64_t chunk_count = 1;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  PushMode mode = PushMode::kSum;
  uint64_t key = 0;  // of what is kept

  bool operator==(const PushHeader&) const = default;
};
using PushHeaderBytes = std::array<std::byte, 48>;

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

// Of messages that are no data, whose tags end in 0 and 1.
inline constexpr Tag kPushHeaderStep = 0xffff;
inline constexpr Tag kGroupHeaderStep = 0xfffe;
inline Tag PushHeaderTag(int stream, GroupId group) {
  return MakeTag(stream, static_cast<uint32_t>(group)) | kPushHeaderStep;
}
inline Tag GroupHeaderTag() { return MakeTag(0, 0) | kGroupHeaderStep; }

}  // namespace rabit

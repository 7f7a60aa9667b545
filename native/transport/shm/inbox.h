// Inbox: the shared memory of one rank, into which its peers on the host write.
//
// One memory file per rank, anonymous (memfd: it has no name in any file system and goes when the
// last process that maps it goes, however it dies) and sealed, so that nobody can cut it short
// under a reader.  Layout: one Doorbell per stream, then the heads of all lanes, one lane per
// (sender, stream), then their data rings:
//
//   ReaderState | SenderState | slots | acknowledgements | revocations
//
// A lane has one writer per word and no lock, so a process killed between any two instructions
// leaves its peer nothing worse than silence.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/shm/doorbell.h"

namespace rabit {

// Messages and chunks in flight per lane: as many as let the head of a lane fill two pages.
inline constexpr uint32_t kSlots = 110;
inline constexpr uint32_t kOffers = 64;         // single-copy messages in flight per lane
inline constexpr uint32_t kInlineBytes = 24;    // what a slot carries itself
inline constexpr uint32_t kDataAlignment = 64;  // of every chunk in the data ring
inline constexpr uint64_t kPageBytes = 4096;
// What a chunk takes of the data ring.
inline constexpr uint64_t Aligned(uint64_t bytes) {
  return (bytes + kDataAlignment - 1) & ~uint64_t{kDataAlignment - 1};
}

enum class SlotKind : uint32_t {
  kInline = 1,  // a whole message inside the slot
  kData = 2,    // the next chunk of a message, in the data ring
  kOffer = 3,   // a message to be read from the sender's memory; argument: its address there
  kRetry = 4,   // like kData, for an offer that could not be read; argument: the offer's number
  kBroken = 5,  // the sender gave up in the middle; argument: as kRetry, or kNoOffer
};
inline constexpr uint64_t kNoOffer = ~uint64_t{0};

// Written by the sender; everything but `stamp` is published by it.  The stamp is the number of
// the slot's use plus one, hence never equal to one left from an earlier lap.  Where lanes are
// checked, the checksum of the slot and its chunk is in `argument` of kInline, and else in the
// first bytes of `inline_data`.
struct alignas(64) Slot {
  std::atomic<uint64_t> stamp;
  uint64_t tag;
  uint64_t message_bytes;
  uint64_t argument;
  uint32_t chunk_bytes;
  SlotKind kind;
  std::array<std::byte, kInlineBytes> inline_data;
};
static_assert(sizeof(Slot) == 64);

// Of slot number `number` and the bytes that it announces or carries.
uint32_t ChecksumOf(const Slot& slot, uint64_t number, ConstBytes chunk);
void SetChecksum(Slot& slot, uint32_t checksum);
uint32_t ChecksumIn(const Slot& slot);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Written by the reader: what the sender may use again.
struct alignas(64) ReaderState {
  std::atomic<uint64_t> slots_consumed;
  std::atomic<uint64_t> bytes_consumed;
};

// Written by the sender: it waits for room and wants its doorbell rung.
struct alignas(64) SenderState {
  std::atomic<uint32_t> wants_room;
};

// One direction between two ranks on one stream.  Borrows the mapping.
struct LaneMemory {
  ReaderState* reader = nullptr;
  SenderState* sender = nullptr;
  Slot* slots = nullptr;
  // [k % kOffers], written by the reader: 2(k+1), plus one if offer k could not be read.
  std::atomic<uint64_t>* acknowledged = nullptr;
  // [k % kOffers], written by the sender: k+1 once offer k must not be believed any more.
  std::atomic<uint64_t>* revoked = nullptr;
  std::byte* data = nullptr;
  uint32_t ring_bytes = 0;

  // Of the ring; a multiple of pages.  Before anything is written there for the first time.
  Status Reserve(uint64_t begin, uint64_t end) const;
};

struct InboxShape {
  int senders = 0;
  int streams = 0;
  uint32_t ring_bytes = 0;  // a multiple of 4096

  size_t HeadBytes() const;   // all but the rings
  size_t TotalBytes() const;
  bool operator==(const InboxShape&) const = default;
};

// Most lanes use little of their ring, or nothing: an algorithm talks with few peers, on few
// streams.
enum class Rings { kReserved, kReservedByUse };

class Inbox {
 public:
  // A new one, zeroed; the memory of the heads, and that of the rings unless their users do it, is
  // reserved, so that a full host fails here, by kResourceExhausted, and not by SIGBUS in the
  // middle of a message.
  static Result<Inbox> Create(const InboxShape& shape, Rings rings = Rings::kReserved);
  // Of a peer.  Refuses a file that is not sealed or smaller than `shape` says.
  static Result<Inbox> Map(UniqueFd fd, const InboxShape& shape);

  Inbox(Inbox&& other) noexcept
      : shape_(other.shape_),
        fd_(std::move(other.fd_)),
        base_(std::exchange(other.base_, nullptr)) {}
  Inbox& operator=(Inbox&&) = delete;
  ~Inbox();

  const InboxShape& shape() const { return shape_; }
  int fd() const { return fd_.get(); }
  // The mapping outlives its descriptor.
  void CloseFd() { fd_.reset(); }
  Doorbell& doorbell(int stream) const;
  LaneMemory lane(int sender, int stream) const;

 private:
  Inbox(const InboxShape& shape, UniqueFd fd, std::byte* base)
      : shape_(shape), fd_(std::move(fd)), base_(base) {}

  InboxShape shape_;
  UniqueFd fd_;
  std::byte* base_;
};

}  // namespace rabit

// OutboundLane: the sending half of one lane (see inbox.h).
#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/shm/inbox.h"
#include "transport/shm/lane_operation.h"
#include "transport/shm/write_choice.h"

namespace rabit {

struct LaneOptions {
  uint32_t chunk_bytes = 0;            // staged messages move in chunks of at most this
  uint64_t single_copy_min_bytes = 0;  // longer messages are offered; ~0: never
  bool is_checked = false;             // slots have checksums, and no message is offered
};

// Messages leave in the order they were queued.  A message is staged (copied into the ring, in
// chunks) or offered (the peer reads it from our memory).  Every method is called under the lock of
// the stream; none blocks.
//
// Who may still read an offered buffer after Cancel: the peer, by process_vm_readv, which cannot
// fault us and cannot write.  What it read is worthless if the buffer has been reused, so Cancel
// publishes the revocation before it returns, and the peer looks for it after its last read and
// before it believes a byte: a read that overlapped the reuse is always found out.
class OutboundLane {
 public:
  OutboundLane(LaneMemory memory, Doorbell& peer_bell, LaneOptions options)
      : memory_(memory), peer_bell_(peer_bell), options_(options) {}

  // Copies a whole message into the ring if nothing is queued before it and there is room.
  bool TrySendNow(Tag tag, ConstBytes buffer);
  // Takes as much into the ring as there is room for.  `send` is borrowed until it is done or
  // cancelled.
  void Queue(SendState& send) {
    queue_.push_back({&send, kNoOffer});
    uint64_t finished = 0;
    Push(true, finished);
  }
  void Cancel(SendState& send);
  // Moves what can be moved; whether anything moved.  Adds finished sends to `finished`.
  bool Progress(uint64_t& finished);
  // Fails whatever is queued or offered.
  void FailAll(const Status& why);
  bool is_idle() const { return queue_.empty() && oldest_offer_ == next_offer_; }

 private:
  struct Item {
    SendState* send;  // nullptr: given up half way; the peer must be told
    uint64_t offer;   // kNoOffer, or the offer that the peer could not read
  };

  bool Push(bool until_full, uint64_t& finished);
  bool HasSlot();
  uint64_t FreeBytes(uint64_t wanted);
  void Publish(Tag tag, uint64_t message_bytes, uint64_t argument, ConstBytes chunk, SlotKind kind);
  bool PushFront(uint64_t& finished);
  bool PushOffer(SendState& send);
  bool PushChunk(SendState& send, uint64_t offer, Status& failure);
  Status Reserve(uint64_t end);
  void Write(std::byte* to, ConstBytes from);
  bool ReapOffers(uint64_t& finished);

  const LaneMemory memory_;
  Doorbell& peer_bell_;
  LaneOptions options_;
  std::deque<Item> queue_;
  // [k % kOffers]: nullptr if offer k was cancelled or is acknowledged.
  std::array<SendState*, kOffers> offers_{};
  std::array<bool, kOffers> is_open_{};
  uint64_t oldest_offer_ = 0;
  uint64_t next_offer_ = 0;
  uint64_t slots_used_ = 0;
  uint64_t bytes_used_ = 0;
  uint64_t slots_consumed_ = 0;  // last seen
  uint64_t bytes_consumed_ = 0;
  bool wants_room_ = false;
  uint64_t reserved_bytes_ = 0;  // of the ring, from its beginning
  WriteChoice write_choice_;
};

}  // namespace rabit

// InboundLane: the receiving half of one lane (see inbox.h).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"
#include "transport/shm/inbox.h"
#include "transport/shm/lane_operation.h"
#include "transport/shm/peer_process.h"

namespace rabit {

// Matches what the peer sends with what is posted here, by tag, in order.  A message nobody has
// posted stays in the ring, where it costs nothing, until a posted receive waits behind it; only
// then is it set aside in memory of ours (bounded).  Every method is called under the lock of the
// stream; none blocks.  Nothing read from the shared memory is trusted: kinds, lengths and numbers
// are checked, and an impossible one is an error of the peer, never an access out of bounds.
class InboundLane {
 public:
  // is_checked: as in the peer's LaneOptions.
  InboundLane(LaneMemory memory, Doorbell& peer_bell, const PeerProcess& peer, bool is_checked)
      : memory_(memory), peer_bell_(peer_bell), peer_(peer), is_checked_(is_checked) {}

  // `recv` is borrowed until it is done or cancelled.
  void Post(RecvState& recv);
  void Cancel(RecvState& recv);
  // Moves what can be moved; sets `has_moved` if anything did and adds finished receives to
  // `finished`.  An error means that the peer's half of the lane cannot be used any more.
  Status Progress(bool& has_moved, uint64_t& finished);
  // Fails whatever is posted.
  void FailAll(const Status& why);
  bool is_idle() const { return posted_.empty() && pulls_.empty() && current_.recv == nullptr; }

 private:
  // A message that came before its receive.
  struct Stashed {
    Tag tag = 0;
    uint64_t message_bytes = 0;
    std::unique_ptr<std::byte[]> data;
    uint64_t received = 0;
    bool is_broken = false;
    uint64_t offer = kNoOffer;  // then `address`, and no data
    uint64_t address = 0;
  };
  // The message whose chunks are arriving; neither target: its bytes are dropped.
  struct Current {
    bool is_active = false;
    Tag tag = 0;
    uint64_t message_bytes = 0;
    uint64_t received = 0;
    RecvState* recv = nullptr;
    std::list<Stashed>::iterator stashed;
    bool is_stashed = false;
  };
  // A message that is read from the sender's memory, or came back as kRetry.
  struct Pull {
    uint64_t offer = 0;
    uint64_t address = 0;
    uint64_t received = 0;
    uint64_t delivered = 0;  // by reading, before the message had to be sent again
    uint64_t message_bytes = 0;
    RecvState* recv = nullptr;  // nullptr: cancelled while it is being sent again
    bool is_retry = false;
  };

  Status TakeSlot(const Slot& slot, bool& has_taken, uint64_t& finished);
  Status TakeChunk(const Slot& slot, bool& has_taken, uint64_t& finished);
  Status TakeOffer(const Slot& slot, bool& has_taken, uint64_t& finished);
  Status TakeRetry(const Slot& slot, uint64_t& finished);
  Status TakeBroken(uint64_t offer, uint64_t& finished);
  // Fills current_ for a first chunk; false: it has to stay in the ring for now.
  Result<bool> Begin(const Slot& slot, uint64_t& finished);
  RecvState* TakePosted(Tag tag);
  bool MatchesSize(RecvState& recv, uint64_t message_bytes);
  void PostToStashed(RecvState& recv, std::list<Stashed>::iterator stashed);
  void StartPull(RecvState& recv, uint64_t offer, uint64_t address);
  bool AdvancePull(Pull& pull, uint64_t& finished);  // whether it is over
  void Acknowledge(uint64_t offer, bool is_unreadable);
  Status CheckChunk(const Slot& slot, uint64_t left) const;
  Status CheckUnchanged(const Slot& slot) const;
  const std::byte* ChunkData() const { return memory_.data + bytes_consumed_ % memory_.ring_bytes; }
  void Consume(const Slot& slot);
  Status Corrupt(const char* what, uint64_t value) const;
  Status GaveUp(uint64_t received, uint64_t message_bytes) const;

  const LaneMemory memory_;
  Doorbell& peer_bell_;
  const PeerProcess& peer_;
  const bool is_checked_;
  std::list<RecvState*> posted_;
  std::list<Stashed> stash_;
  uint64_t stash_bytes_ = 0;
  std::list<Pull> pulls_;
  Current current_;
  uint64_t next_offer_ = 0;
  uint64_t slots_consumed_ = 0;
  uint64_t bytes_consumed_ = 0;
};

}  // namespace rabit

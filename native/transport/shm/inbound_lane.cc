#include "transport/shm/inbound_lane.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "base/measured.h"

namespace rabit {
namespace {

// Of messages set aside per lane.
constexpr uint64_t kStashBytesMax = uint64_t{256} << 20;
constexpr uint64_t kStashedMax = 1024;
// Consumed by one call before the caller's other lanes get their turn.
constexpr uint64_t kProgressBytes = 64 * 1024;

}  // namespace

void InboundLane::Post(RecvState& recv) {
  for (auto stashed = stash_.begin(); stashed != stash_.end(); ++stashed) {
    if (stashed->tag == recv.tag) return PostToStashed(recv, stashed);
  }
  posted_.push_back(&recv);
}

void InboundLane::PostToStashed(RecvState& recv, std::list<Stashed>::iterator stashed) {
  // The rest of a message that still arrives goes straight to the receive.
  const bool is_current = current_.is_stashed && current_.stashed == stashed;
  if (is_current) current_.is_stashed = false;
  if (!MatchesSize(recv, stashed->message_bytes)) {
    // The sender waits for this before it may reuse its buffer, also if the sizes differ.
    if (stashed->offer != kNoOffer) Acknowledge(stashed->offer, false);
  } else if (stashed->is_broken) {
    recv.Finish(GaveUp(stashed->received, stashed->message_bytes));
  } else if (stashed->offer != kNoOffer) {
    StartPull(recv, stashed->offer, stashed->address);
  } else {
    recv.Deliver(0, {stashed->data.get(), stashed->received});
    if (is_current) {
      current_.recv = &recv;
    } else {
      recv.Finish(Status());
    }
  }
  if (stashed->offer == kNoOffer) stash_bytes_ -= stashed->message_bytes;
  stash_.erase(stashed);
}

void InboundLane::Cancel(RecvState& recv) {
  // After this the lane knows the receive no more; a message that comes for it goes to the stash,
  // or stays in the ring.
  posted_.remove(&recv);
  if (current_.recv == &recv) current_.recv = nullptr;
  for (auto pull = pulls_.begin(); pull != pulls_.end(); ++pull) {
    if (pull->recv != &recv) continue;
    pull->recv = nullptr;
    // A retry comes through the ring whether or not it is wanted: the pull stays, to count its
    // bytes off.
    if (!pull->is_retry) {
      Acknowledge(pull->offer, false);
      pulls_.erase(pull);
    }
    return;
  }
}

Status InboundLane::Progress(bool& has_moved, uint64_t& finished) {
  for (auto pull = pulls_.begin(); pull != pulls_.end();) {
    if (pull->is_retry) {
      ++pull;
      continue;
    }
    has_moved = true;
    pull = AdvancePull(*pull, finished) ? pulls_.erase(pull) : std::next(pull);
  }
  const uint64_t start = bytes_consumed_;
  while (bytes_consumed_ - start < kProgressBytes) {
    const Slot& slot = memory_.slots[slots_consumed_ % kSlots];
    // The stamp is written last, so a slot with the expected number is complete. Numbers never come
    // again.
    if (slot.stamp.load(std::memory_order_seq_cst) != slots_consumed_ + 1) break;
    bool has_taken = false;
    RABIT_RETURN_IF_ERROR(TakeSlot(slot, has_taken, finished));
    if (!has_taken) break;
    has_moved = true;
  }
  return Status();
}

void InboundLane::FailAll(const Status& why) {
  // The stream's lock is held by everybody who calls a lane, so no thread sees a list that is half
  // failed.
  for (RecvState* recv : posted_) recv->Finish(why);
  posted_.clear();
  for (Pull& pull : pulls_) {
    if (pull.recv != nullptr) pull.recv->Finish(why);
  }
  pulls_.clear();
  if (current_.recv != nullptr) current_.recv->Finish(why);
  current_ = Current();
}

Status InboundLane::TakeSlot(const Slot& shared, bool& has_taken, uint64_t& finished) {
  // A copy: the peer could change the slot between a check and its use.
  Slot slot{};
  slot.tag = shared.tag;
  slot.message_bytes = shared.message_bytes;
  slot.argument = shared.argument;
  slot.chunk_bytes = shared.chunk_bytes;
  slot.kind = shared.kind;
  if (slot.kind == SlotKind::kInline || is_checked_) slot.inline_data = shared.inline_data;
  if (is_checked_) RABIT_RETURN_IF_ERROR(CheckUnchanged(slot));
  switch (slot.kind) {
    case SlotKind::kInline:
    case SlotKind::kData:
      return TakeChunk(slot, has_taken, finished);
    case SlotKind::kOffer:
      return TakeOffer(slot, has_taken, finished);
    case SlotKind::kRetry:
      has_taken = true;
      return TakeRetry(slot, finished);
    case SlotKind::kBroken:
      has_taken = true;
      RABIT_RETURN_IF_ERROR(TakeBroken(slot.argument, finished));
      Consume(slot);
      return Status();
  }
  return Corrupt("slot kind", static_cast<uint64_t>(slot.kind));
}

Status InboundLane::TakeChunk(const Slot& slot, bool& has_taken, uint64_t& finished) {
  if (!current_.is_active) {
    RABIT_ASSIGN_OR_RETURN(const bool has_begun, Begin(slot, finished));
    if (!has_begun) return Status();
  }
  const uint64_t left = current_.message_bytes - current_.received;
  const std::byte* from = ChunkData();
  if (slot.kind == SlotKind::kInline) {
    // Lengths come from another process, and decide what is copied from where: each is checked
    // against what is possible.
    if (slot.chunk_bytes > kInlineBytes || slot.chunk_bytes != left) {
      return Corrupt("inline length", slot.chunk_bytes);
    }
    from = slot.inline_data.data();
  } else {
    RABIT_RETURN_IF_ERROR(CheckChunk(slot, left));
  }
  if (current_.recv != nullptr) {
    // A receive that reduces does it here, on the thread that waits, while the chunk is in its
    // cache.
    current_.recv->Deliver(current_.received, {from, slot.chunk_bytes});
  } else if (current_.is_stashed && slot.chunk_bytes > 0) {
    std::memcpy(current_.stashed->data.get() + current_.received, from, slot.chunk_bytes);
  }
  current_.received += slot.chunk_bytes;
  if (current_.is_stashed) current_.stashed->received = current_.received;
  Consume(slot);
  has_taken = true;
  if (current_.received == current_.message_bytes) {
    if (current_.recv != nullptr) {
      current_.recv->Finish(Status());
      ++finished;
    }
    current_ = Current();
  }
  return Status();
}

Result<bool> InboundLane::Begin(const Slot& slot, uint64_t& finished) {
  RecvState* recv = TakePosted(slot.tag);
  Current next;
  next.is_active = true;
  next.tag = slot.tag;
  next.message_bytes = slot.message_bytes;
  if (recv != nullptr) {
    if (MatchesSize(*recv, slot.message_bytes)) {
      next.recv = recv;
    } else {
      ++finished;
    }
  } else {
    // While no receive is waiting the message stays in the ring: setting it aside would copy it
    // twice.
    if (posted_.empty()) return false;
    if (stash_.size() >= kStashedMax || slot.message_bytes > kStashBytesMax - stash_bytes_) {
      return ResourceExhausted(
          "shm: rank " + std::to_string(peer_.rank()) + " sent " +
          std::to_string(slot.message_bytes) + " bytes that nobody receives, " +
          std::to_string(stash_bytes_) +
          " bytes are set aside already and a "
          "receive waits behind them; post receives in the order of the sends");
    }
    Stashed stashed;
    stashed.tag = slot.tag;
    stashed.message_bytes = slot.message_bytes;
    stashed.data.reset(new (std::nothrow) std::byte[slot.message_bytes + 1]);
    if (stashed.data == nullptr) {
      return ResourceExhausted("shm: no memory to set " + std::to_string(slot.message_bytes) +
                               " bytes of rank " + std::to_string(peer_.rank()) + " aside");
    }
    stash_bytes_ += slot.message_bytes;
    next.stashed = stash_.insert(stash_.end(), std::move(stashed));
    next.is_stashed = true;
  }
  current_ = next;
  return true;
}

Status InboundLane::TakeOffer(const Slot& slot, bool& has_taken, uint64_t& finished) {
  if (current_.is_active) return Corrupt("offer inside a message of tag", current_.tag);
  RecvState* recv = TakePosted(slot.tag);
  if (recv == nullptr && posted_.empty()) return Status();
  has_taken = true;
  // Both sides count offers, so the number is not in the slot.
  const uint64_t offer = next_offer_++;
  Consume(slot);
  if (recv == nullptr) {
    if (stash_.size() >= kStashedMax) return Corrupt("number of unmatched offers", stash_.size());
    Stashed stashed;
    stashed.tag = slot.tag;
    stashed.message_bytes = slot.message_bytes;
    stashed.offer = offer;
    stashed.address = slot.argument;
    stash_.push_back(std::move(stashed));
  } else if (MatchesSize(*recv, slot.message_bytes)) {
    StartPull(*recv, offer, slot.argument);
  } else {
    ++finished;
    Acknowledge(offer, false);
  }
  return Status();
}

Status InboundLane::TakeRetry(const Slot& slot, uint64_t& finished) {
  auto pull = std::find_if(pulls_.begin(), pulls_.end(), [&](const Pull& candidate) {
    return candidate.is_retry && candidate.offer == slot.argument;
  });
  if (pull == pulls_.end()) return Corrupt("number of a repeated message", slot.argument);
  RABIT_RETURN_IF_ERROR(CheckChunk(slot, pull->message_bytes - pull->received));
  // Pieces that were read before the sender's memory became unreadable are not taken twice: they
  // may have been reduced already.
  const uint64_t known =
      std::clamp<uint64_t>(pull->delivered, pull->received, pull->received + slot.chunk_bytes);
  if (pull->recv != nullptr) {
    pull->recv->Deliver(
        known, {ChunkData() + (known - pull->received), pull->received + slot.chunk_bytes - known});
  }
  pull->received += slot.chunk_bytes;
  Consume(slot);
  if (pull->received == pull->message_bytes) {
    if (pull->recv != nullptr) {
      pull->recv->Finish(Status());
      ++finished;
    }
    pulls_.erase(pull);
  }
  return Status();
}

Status InboundLane::TakeBroken(uint64_t offer, uint64_t& finished) {
  if (offer != kNoOffer) {
    auto pull = std::find_if(pulls_.begin(), pulls_.end(), [&](const Pull& candidate) {
      return candidate.is_retry && candidate.offer == offer;
    });
    if (pull == pulls_.end()) return Corrupt("number of a broken message", offer);
    if (pull->recv != nullptr) {
      pull->recv->Finish(GaveUp(pull->received, pull->message_bytes));
      ++finished;
    }
    pulls_.erase(pull);
    return Status();
  }
  if (!current_.is_active) return Corrupt("end of a message that has not begun", 0);
  if (current_.recv != nullptr) {
    current_.recv->Finish(GaveUp(current_.received, current_.message_bytes));
    ++finished;
  }
  if (current_.is_stashed) current_.stashed->is_broken = true;
  current_ = Current();
  return Status();
}

RecvState* InboundLane::TakePosted(Tag tag) {
  for (auto it = posted_.begin(); it != posted_.end(); ++it) {
    if ((*it)->tag != tag) continue;
    RecvState* recv = *it;
    posted_.erase(it);
    return recv;
  }
  return nullptr;
}

// Finishes `recv` with kMismatch if the sizes differ.
bool InboundLane::MatchesSize(RecvState& recv, uint64_t message_bytes) {
  if (recv.buffer.size() == message_bytes) return true;
  recv.Finish(Mismatch("shm: rank " + std::to_string(peer_.rank()) + " sent " +
                       std::to_string(message_bytes) + " bytes where " +
                       std::to_string(recv.buffer.size()) +
                       " are expected; use the same shape and dtype on every rank")
                  .WithCulprit(peer_.rank()));
  return false;
}

void InboundLane::StartPull(RecvState& recv, uint64_t offer, uint64_t address) {
  Pull pull;
  pull.offer = offer;
  pull.address = address;
  pull.message_bytes = recv.buffer.size();
  pull.recv = &recv;
  pulls_.push_back(pull);
}

bool InboundLane::AdvancePull(Pull& pull, uint64_t& finished) {
  // One piece at each look, so that other lanes and the deadline get their turn.
  const uint64_t bytes = std::min(pull.message_bytes - pull.received, kPullBytes);
  RecvState& recv = *pull.recv;
  // A reduction reads into the scratch: into its start each time, which stays in the cache.
  const bool is_reduced = recv.reducer.run != nullptr;
  const Bytes to =
      is_reduced ? recv.scratch.first(bytes) : recv.buffer.subspan(pull.received, bytes);
  const bool is_read = peer_.Read(pull.address + pull.received, to);
  // Read after the bytes: if the sender has not revoked by now, it had not begun to reuse its
  // buffer when they were read (OutboundLane::Cancel).
  const bool is_revoked =
      memory_.revoked[pull.offer % kOffers].load(std::memory_order_seq_cst) == pull.offer + 1;
  if (is_revoked) {
    recv.Finish(GaveUp(pull.received, pull.message_bytes));
    ++finished;
    Acknowledge(pull.offer, false);
    return true;
  }
  if (!is_read) {
    // If the peer is alive, it sends the message again through the ring; if not, the stream will
    // find out.
    pull.is_retry = true;
    pull.delivered = pull.received;
    pull.received = 0;
    Acknowledge(pull.offer, true);
    return false;
  }
  if (is_reduced) recv.Deliver(pull.received, to);
  pull.received += bytes;
  if (pull.received < pull.message_bytes) return false;
  recv.Finish(Status());
  ++finished;
  Acknowledge(pull.offer, false);
  return true;
}

void InboundLane::Acknowledge(uint64_t offer, bool is_unreadable) {
  memory_.acknowledged[offer % kOffers].store(2 * (offer + 1) + (is_unreadable ? 1 : 0),
                                              std::memory_order_seq_cst);
  // The sender may sleep until its buffer is free.
  Ring(peer_bell_);
}

Status InboundLane::CheckChunk(const Slot& slot, uint64_t left) const {
  const uint64_t to_end = memory_.ring_bytes - bytes_consumed_ % memory_.ring_bytes;
  if (slot.chunk_bytes == 0 || slot.chunk_bytes > left || slot.chunk_bytes > to_end) {
    return Corrupt("chunk length", slot.chunk_bytes);
  }
  return Status();
}

// A message that waits in the ring is checked each time that it is looked at.
Status InboundLane::CheckUnchanged(const Slot& slot) const {
  ConstBytes chunk;
  if (slot.kind == SlotKind::kInline) {
    chunk = ConstBytes(slot.inline_data).first(std::min(slot.chunk_bytes, kInlineBytes));
  } else if (slot.chunk_bytes != 0) {
    RABIT_RETURN_IF_ERROR(CheckChunk(slot, memory_.ring_bytes));
    chunk = {ChunkData(), slot.chunk_bytes};
  }
  const uint32_t read = ChecksumOf(slot, slots_consumed_, chunk);
  if (read == ChecksumIn(slot)) return Status();
  return Internal("shm: " + std::to_string(slot.chunk_bytes) + " bytes of rank " +
                  std::to_string(peer_.rank()) + " have changed in shared memory (checksum " +
                  std::to_string(read) + " instead of " + std::to_string(ChecksumIn(slot)) +
                  "): the memory of this host fails, or a process wrote to it; nothing of them was "
                  "used. Restart the job, and test the memory if it happens again")
      .WithCulprit(peer_.rank());
}

void InboundLane::Consume(const Slot& slot) {
  if (slot.kind == SlotKind::kData || slot.kind == SlotKind::kRetry) {
    bytes_consumed_ += Aligned(slot.chunk_bytes);
    // After the bytes were copied: from here on the sender may overwrite them.
    memory_.reader->bytes_consumed.store(bytes_consumed_, std::memory_order_seq_cst);
  }
  // The slot may be overwritten as soon as the store below is seen, so `slot` is a copy.
  ++slots_consumed_;
  memory_.reader->slots_consumed.store(slots_consumed_, std::memory_order_seq_cst);
  if (memory_.sender->wants_room.load(std::memory_order_seq_cst) != 0) Ring(peer_bell_);
}

Status InboundLane::Corrupt(const char* what, uint64_t value) const {
  return Internal("shm: rank " + std::to_string(peer_.rank()) + " wrote an impossible " + what +
                  " (" + std::to_string(value) +
                  ") into the shared ring; its memory is damaged, restart the job")
      .WithCulprit(peer_.rank());
}

Status InboundLane::GaveUp(uint64_t received, uint64_t message_bytes) const {
  return Aborted("shm: rank " + std::to_string(peer_.rank()) + " gave up sending after " +
                 std::to_string(received) + " of " + std::to_string(message_bytes) +
                 " bytes; see its own error")
      .WithCulprit(peer_.rank());
}

}  // namespace rabit

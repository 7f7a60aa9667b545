#include "transport/shm/outbound_lane.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/measured.h"
#include "base/streamed_copy.h"

namespace rabit {
bool OutboundLane::TrySendNow(Tag tag, ConstBytes buffer) {
  // Messages of one lane stay in order, so nothing overtakes the queue.
  if (!queue_.empty() || buffer.size() > options_.chunk_bytes ||
      buffer.size() >= options_.single_copy_min_bytes || !HasSlot()) {
    return false;
  }
  SendState send;
  send.tag = tag;
  send.buffer = buffer;
  if (buffer.size() > kInlineBytes) {
    // Whole, or not at all: a chunk that ends at the end of the ring needs a second slot.
    const uint64_t to_end = memory_.ring_bytes - bytes_used_ % memory_.ring_bytes;
    if (to_end < buffer.size() || FreeBytes(buffer.size()) < Aligned(buffer.size())) return false;
  }
  Status failure;  // Queue meets it again, and tells it
  const bool is_sent = PushChunk(send, kNoOffer, failure);
  Ring(peer_bell_);
  return is_sent;
}

void OutboundLane::Cancel(SendState& send) {
  for (uint64_t offer = oldest_offer_; offer != next_offer_; ++offer) {
    if (offers_[offer % kOffers] != &send) continue;
    // A read-modify-write: the caller's later stores to the buffer cannot pass it.
    memory_.revoked[offer % kOffers].exchange(offer + 1, std::memory_order_seq_cst);
    offers_[offer % kOffers] = nullptr;
    return;
  }
  for (auto item = queue_.begin(); item != queue_.end(); ++item) {
    if (item->send != &send) continue;
    // A message that has begun cannot be taken back: the peer learns that it is broken, or it would
    // wait for the rest.
    if (send.sent == 0 && item->offer == kNoOffer) {
      queue_.erase(item);
    } else {
      item->send = nullptr;
    }
    return;
  }
}

bool OutboundLane::Progress(uint64_t& finished) {
  const bool has_reaped = ReapOffers(finished);
  // One chunk at a time for long messages, so that the caller also drains what comes in.
  return Push(false, finished) || has_reaped;
}

bool OutboundLane::Push(bool until_full, uint64_t& finished) {
  bool has_published = false;
  while (!queue_.empty()) {
    const bool is_long =
        queue_.front().send != nullptr && queue_.front().send->buffer.size() > options_.chunk_bytes;
    if (!PushFront(finished)) break;
    has_published = true;
    // Two ranks that both send much must read in between, or both rings fill up and neither goes
    // on.
    if (is_long && !until_full) break;
  }
  if (has_published) Ring(peer_bell_);
  return has_published;
}

void OutboundLane::FailAll(const Status& why) {
  for (Item& item : queue_) {
    if (item.send != nullptr) item.send->Finish(why);
  }
  // The stream's lock is held: no thread is between a look at the queue and a write to the ring.
  queue_.clear();
  for (; oldest_offer_ != next_offer_; ++oldest_offer_) {
    SendState*& send = offers_[oldest_offer_ % kOffers];
    // The peer may be reading our memory at this moment, and checks this after it has read.
    memory_.revoked[oldest_offer_ % kOffers].exchange(oldest_offer_ + 1);
    if (send != nullptr) send->Finish(why);
    send = nullptr;
    is_open_[oldest_offer_ % kOffers] = false;
  }
}

bool OutboundLane::HasSlot() {
  if (slots_used_ - slots_consumed_ < kSlots) return true;
  if (!wants_room_) {
    wants_room_ = true;
    // Before the second look at what was consumed: either this look sees the room, or the reader
    // sees the wish and rings.
    memory_.sender->wants_room.store(1, std::memory_order_seq_cst);
  }
  const uint64_t seen = memory_.reader->slots_consumed.load(std::memory_order_seq_cst);
  // What the peer claims to have consumed is believed only as far as it is possible.
  if (seen > slots_consumed_ && seen <= slots_used_) slots_consumed_ = seen;
  return slots_used_ - slots_consumed_ < kSlots;
}

// At least `wanted`, or as much as there is.
uint64_t OutboundLane::FreeBytes(uint64_t wanted) {
  uint64_t free = memory_.ring_bytes - (bytes_used_ - bytes_consumed_);
  if (free >= Aligned(wanted)) return free;
  if (!wants_room_) {
    wants_room_ = true;
    memory_.sender->wants_room.store(1, std::memory_order_seq_cst);
  }
  const uint64_t seen = memory_.reader->bytes_consumed.load(std::memory_order_seq_cst);
  // As with slots: a number beyond what was written is a defect of the peer, and would let us
  // overwrite unread data.
  if (seen > bytes_consumed_ && seen <= bytes_used_) bytes_consumed_ = seen;
  return memory_.ring_bytes - (bytes_used_ - bytes_consumed_);
}

void OutboundLane::Publish(Tag tag, uint64_t message_bytes, uint64_t argument, ConstBytes chunk,
                           SlotKind kind) {
  Slot& slot = memory_.slots[slots_used_ % kSlots];
  slot.tag = tag;
  slot.message_bytes = message_bytes;
  slot.argument = argument;
  slot.chunk_bytes = static_cast<uint32_t>(chunk.size());
  slot.kind = kind;
  if (kind == SlotKind::kInline) std::ranges::copy(chunk, slot.inline_data.begin());
  if (options_.is_checked) SetChecksum(slot, ChecksumOf(slot, slots_used_, chunk));
  ++slots_used_;
  // Sequentially consistent for the sake of the doorbell.
  slot.stamp.store(slots_used_, std::memory_order_seq_cst);
  if (wants_room_) {
    wants_room_ = false;
    memory_.sender->wants_room.store(0, std::memory_order_relaxed);
  }
}

// One slot of the first message; false: no room.
bool OutboundLane::PushFront(uint64_t& finished) {
  if (!HasSlot()) return false;
  const Item item = queue_.front();
  if (item.send == nullptr) {
    Publish(0, 0, item.offer, {}, SlotKind::kBroken);
    queue_.pop_front();
    return true;
  }
  SendState& send = *item.send;
  if (item.offer == kNoOffer && send.buffer.size() >= options_.single_copy_min_bytes) {
    // The operation stays open until the peer has read: its buffer may not be touched before.
    if (!PushOffer(send)) return false;
    queue_.pop_front();
    return true;
  }
  Status failure;
  if (!PushChunk(send, item.offer, failure)) {
    if (failure.ok()) return false;
    // The next call tells the peer.
    queue_.front().send = nullptr;
    send.Finish(failure);
    ++finished;
    return true;
  }
  if (send.sent == send.buffer.size()) {
    queue_.pop_front();
    send.Finish(Status());
    ++finished;
  }
  return true;
}

bool OutboundLane::PushOffer(SendState& send) {
  // The words of acknowledgements are a ring of their own; the oldest offer has to end first.
  if (next_offer_ - oldest_offer_ == kOffers) return false;
  // The peer reads the sender's memory from here on, until it acknowledges; Cancel therefore waits
  // for that or revokes.
  offers_[next_offer_ % kOffers] = &send;
  is_open_[next_offer_ % kOffers] = true;
  ++next_offer_;
  Publish(send.tag, send.buffer.size(), reinterpret_cast<uint64_t>(send.buffer.data()), {},
          SlotKind::kOffer);
  return true;
}

// False: no room, or no memory, which `failure` tells.
bool OutboundLane::PushChunk(SendState& send, uint64_t offer, Status& failure) {
  const uint64_t message_bytes = send.buffer.size();
  if (message_bytes <= kInlineBytes && offer == kNoOffer) {
    Publish(send.tag, message_bytes, 0, send.buffer, SlotKind::kInline);
    send.sent = message_bytes;
    return true;
  }
  const uint64_t wanted = std::min<uint64_t>(message_bytes - send.sent, options_.chunk_bytes);
  // A chunk never wraps: it ends at the end of the ring, and the message goes on in the next slot.
  const uint64_t at = bytes_used_ % memory_.ring_bytes;
  const uint64_t chunk = std::min<uint64_t>(wanted, memory_.ring_bytes - at);
  if (FreeBytes(chunk) < Aligned(chunk)) return false;
  // Pages are reserved as the ring is used for the first time: in a full /dev/shm a write would end
  // the process by SIGBUS.
  failure = Reserve(at + chunk);
  if (!failure.ok()) return false;
  const ConstBytes from = send.buffer.subspan(send.sent, chunk);
  Write(memory_.data + at, from);
  send.sent += chunk;
  bytes_used_ += Aligned(chunk);
  // The checksum is that of the sender's memory: a wrong copy is found as well.
  Publish(send.tag, message_bytes, offer, from,
          offer == kNoOffer ? SlotKind::kData : SlotKind::kRetry);
  return true;
}

Status OutboundLane::Reserve(uint64_t end) {
  if (end <= reserved_bytes_) return Status();
  const uint64_t pages_end = (end + kPageBytes - 1) / kPageBytes * kPageBytes;
  RABIT_RETURN_IF_ERROR(memory_.Reserve(reserved_bytes_, pages_end));
  reserved_bytes_ = pages_end;
  return Status();
}

void OutboundLane::Write(std::byte* to, ConstBytes from) {
  using Clock = std::chrono::steady_clock;
  if (!kHasStreamedCopy || from.size() < kChosenWriteBytesMin) {
    std::memcpy(to, from.data(), from.size());
    return;
  }
  const RingWrite way = write_choice_.Next();
  const Clock::time_point start = Clock::now();
  if (way == RingWrite::kStreamed) {
    StreamedCopy(to, from);
  } else {
    std::memcpy(to, from.data(), from.size());
  }
  write_choice_.Learn(way, from.size(), Clock::now() - start);
}

bool OutboundLane::ReapOffers(uint64_t& finished) {
  bool has_moved = false;
  for (uint64_t offer = oldest_offer_; offer != next_offer_; ++offer) {
    const size_t index = offer % kOffers;
    if (!is_open_[index]) continue;
    const uint64_t seen = memory_.acknowledged[index].load(std::memory_order_seq_cst);
    // The word may still hold the acknowledgement of the offer that used it before.
    if (seen / 2 != offer + 1) continue;
    is_open_[index] = false;
    has_moved = true;
    // Null: the send was cancelled while the peer was reading; only its place is given back.
    SendState* send = std::exchange(offers_[index], nullptr);
    if (seen % 2 == 0) {
      if (send != nullptr) send->Finish(Status());
      ++finished;
      continue;
    }
    // The peer cannot read our memory after all (a device mapping, for example): stage this
    // message, and do not offer again.
    options_.single_copy_min_bytes = ~uint64_t{0};
    queue_.push_back({send, offer});
  }
  while (oldest_offer_ != next_offer_ && !is_open_[oldest_offer_ % kOffers]) ++oldest_offer_;
  return has_moved;
}

}  // namespace rabit

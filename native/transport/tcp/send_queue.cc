#include "transport/tcp/send_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rabit {
namespace {

std::shared_ptr<const std::byte[]> CopyOf(const std::byte* from, size_t bytes) {
  std::shared_ptr<std::byte[]> copy(new std::byte[bytes]);
  std::memcpy(copy.get(), from, bytes);
  return copy;
}

}  // namespace

void SendQueue::Push(std::shared_ptr<Transfer> message, ConstBytes buffer, uint8_t link) {
  const bool is_copied = buffer.size() <= copied_bytes_max_;
  const size_t end_of_part = message->part.end;
  size_t offset = message->part.begin;
  do {
    const size_t bytes = std::min(end_of_part - offset, kFramePayloadBytesMax);
    OutFrame frame;
    frame.header = {.type = FrameType::kData,
                    .flags = 0,
                    .link = link,
                    .sequence = end(),
                    .ack = 0,
                    .tag = message->tag,
                    .message_bytes = buffer.size(),
                    .offset = offset,
                    .payload_bytes = static_cast<uint32_t>(bytes),
                    .payload_crc = 0};
    frame.payload = buffer.data() + offset;
    if (is_copied && bytes > 0) {
      frame.owned = CopyOf(frame.payload, bytes);
      frame.payload = frame.owned.get();
      retained_bytes_ += bytes;
    }
    frame.message = message;
    offset += bytes;
    frame.is_last = offset == end_of_part;
    frame.finishes_when_written = is_copied;
    const bool has_asker = !is_copied && !message->is_answered;
    if (frame.is_last && (has_asker || retained_bytes_ > retained_bytes_max_ / 2)) {
      frame.header.flags = kFrameAckNow;
    }
    frames_.push_back(std::move(frame));
  } while (offset < end_of_part);
}

void SendQueue::PushGoodbye(std::shared_ptr<Transfer> message, uint8_t link) {
  OutFrame frame;
  frame.header.type = FrameType::kGoodbye;
  frame.header.flags = kFrameAckNow;
  frame.header.link = link;
  frame.header.sequence = end();
  frame.message = std::move(message);
  frame.is_last = true;
  frames_.push_back(std::move(frame));
}

OutFrame* SendQueue::Next() { return cursor_ < end() ? &At(cursor_) : nullptr; }

std::shared_ptr<Transfer> SendQueue::Written() {
  OutFrame& frame = At(cursor_);
  ++frame.times_written;
  written_end_ = std::max(written_end_, ++cursor_);
  if (!frame.finishes_when_written || retained_bytes_ > retained_bytes_max_) return nullptr;
  return frame.message->is_done.load(std::memory_order_relaxed) ? nullptr : frame.message;
}

bool SendQueue::Acknowledge(uint64_t ack, std::vector<std::shared_ptr<Transfer>>& finished) {
  if (ack > written_end_) return false;
  while (first_ < ack) {
    OutFrame& frame = frames_.front();
    if (frame.owned) retained_bytes_ -= frame.header.payload_bytes;
    if (frame.is_last && !frame.message->is_done.load(std::memory_order_relaxed)) {
      finished.push_back(frame.message);
    }
    frames_.pop_front();
    ++first_;
  }
  cursor_ = std::max(cursor_, first_);
  return true;
}

bool SendQueue::AskFor(const Transfer& message) {
  for (uint64_t sequence = end(); sequence-- > first_;) {
    OutFrame& frame = At(sequence);
    if (frame.message.get() != &message) continue;
    const bool has_asked = (frame.header.flags & kFrameAckNow) != 0;
    frame.header.flags |= kFrameAckNow;
    return !has_asked;
  }
  return false;
}

bool SendQueue::Detach(const Transfer& message) {
  bool is_found = false;
  for (OutFrame& frame : frames_) {
    if (frame.message.get() != &message) continue;
    if (!message.is_done.load(std::memory_order_relaxed)) {
      is_found = frame.message->is_detached = true;
    }
    if (frame.owned || frame.header.payload_bytes == 0) continue;
    frame.owned = CopyOf(frame.payload, frame.header.payload_bytes);
    frame.payload = frame.owned.get();
    retained_bytes_ += frame.header.payload_bytes;
  }
  return is_found;
}

std::vector<std::shared_ptr<Transfer>> SendQueue::Clear() {
  std::vector<std::shared_ptr<Transfer>> unfinished;
  for (OutFrame& frame : frames_) {
    if (frame.is_last && !frame.message->is_done.load(std::memory_order_relaxed)) {
      unfinished.push_back(frame.message);
    }
  }
  first_ = cursor_ = written_end_ = end();
  frames_.clear();
  retained_bytes_ = 0;
  return unfinished;
}

}  // namespace rabit

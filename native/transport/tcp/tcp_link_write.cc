// The sending half of a link.
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>

#include "base/crc32c.h"
#include "base/socket.h"
#include "transport/tcp/tcp_link.h"

namespace rabit {

void TcpLink::Flush() {
  // send_mutex_ is held. The socket takes what it takes without blocking; epoll says when there is
  // room for more.
  if (socket_ == nullptr || has_write_error_.load() || !WriteLeftover()) return;
  for (;;) {
    if (!writing_.is_active && !StartFrame()) break;
    if (!WriteSome()) break;
    if (writing_.done == kFrameHeaderBytes + writing_.payload_bytes) FinishWriting();
  }
}

// A frame that is with the kernel cannot ask any more; another one asks behind it.
void TcpLink::AskFor(const Transfer& transfer) {
  if (!queue_.AskFor(transfer)) return;
  must_write_ack_ = wants_answer_ = true;
  Flush();
}

// Control frames come first: they are short, and the peer waits for them.
bool TcpLink::StartFrame() {
  if (StartControl()) return true;
  // The peer's hello says which frames it has: before it, this end does not know what to send.
  if (!peer_answered_) return false;
  if (must_rewind_) {
    // No frame is half written here, so the numbers on the connection stay in order.
    queue_.Rewind(*must_rewind_);
    must_rewind_.reset();
  }
  OutFrame* frame = queue_.Next();
  if (frame == nullptr) return false;
  StartNumbered(*frame);
  return true;
}

bool TcpLink::StartControl() {
  FrameHeader header;
  header.link = static_cast<uint8_t>(id_.index);
  header.epoch = id_.epoch;
  // Written by the receiving half under its own lock; a number that is a little old confirms less,
  // and nothing wrong.
  header.ack = expected_.load();
  if (owes_hello_) {
    owes_hello_ = false;
    has_greeted_ = true;
    header.type = FrameType::kHello;
  } else if (!peer_answered_) {
    return false;
  } else if (must_write_nack_) {
    header.type = FrameType::kNack;
    header.sequence = *must_write_nack_;
    must_write_nack_.reset();
  } else if (must_write_ack_ && (must_rewind_ || queue_.Next() == nullptr)) {
    header.type = FrameType::kAck;
    if (wants_answer_) header.flags = kFrameAckNow;
    wants_answer_ = false;
  } else {
    return false;  // an acknowledgement that is owed rides on the next numbered frame
  }
  must_write_ack_ = false;
  writing_ = Writing{};
  writing_.is_active = writing_.is_control = true;
  EncodeFrameHeader(header, writing_.header);
  return true;
}

void TcpLink::StartNumbered(OutFrame& frame) {
  // Statistics show links that lose frames before anything fails.
  if (frame.times_written > 0) counters_.frames_resent.fetch_add(1, std::memory_order_relaxed);
  // The frame may have been written on another connection, which checked differently.
  frame.header.flags &= static_cast<uint8_t>(~kFrameUnchecked);
  if (!checks_payload_) {
    frame.header.flags |= kFrameUnchecked;
  } else if (!frame.has_crc) {
    // Just before the kernel reads the same bytes, while they are in the cache.
    frame.header.payload_crc = Crc32c({frame.payload, frame.header.payload_bytes});
    frame.has_crc = true;
  }
  frame.header.ack = expected_.load();
  frame.header.epoch = id_.epoch;
  if (wants_answer_) frame.header.flags |= kFrameAckNow;
  must_write_ack_ = wants_answer_ = false;
  writing_.is_active = true;
  writing_.is_control = false;
  writing_.sequence = frame.header.sequence;
  // The sizes are copied, because an acknowledgement may take the frame out of the queue only after
  // it was written in full (ApplyAck).
  writing_.payload_bytes = frame.header.payload_bytes;
  writing_.done = 0;
  writing_.fault = FrameFault::kNone;
  writing_.altered.clear();
  EncodeFrameHeader(frame.header, writing_.header);
  // Tests alone set a tap.
  if (options_.tap) ApplyFault(frame);
}

void TcpLink::ApplyFault(const OutFrame& frame) {
  writing_.fault = options_.tap(id_.peer, frame.header);
  if (writing_.fault == FrameFault::kFlipHeaderBit) {
    writing_.header[frame.header.sequence % kFrameHeaderBytes] ^= std::byte{0x10};
  }
  if (writing_.fault == FrameFault::kFlipPayloadBit && frame.header.payload_bytes > 0) {
    writing_.altered.assign(frame.payload, frame.payload + frame.header.payload_bytes);
    writing_.altered[frame.header.sequence % frame.header.payload_bytes] ^= std::byte{0x04};
  }
}

bool TcpLink::WriteSome() {
  if (writing_.fault == FrameFault::kDropConnection) {
    [[maybe_unused]] const ssize_t half = ::send(
        socket_->get(), writing_.header.data(), kFrameHeaderBytes / 2, MSG_NOSIGNAL | MSG_DONTWAIT);
    EndWriting();
    return false;
  }
  iovec parts[2];
  size_t count = 0;
  if (writing_.done < kFrameHeaderBytes) {
    parts[count++] = {writing_.header.data() + writing_.done, kFrameHeaderBytes - writing_.done};
  }
  if (writing_.payload_bytes > 0) {
    const size_t done = writing_.done > kFrameHeaderBytes ? writing_.done - kFrameHeaderBytes : 0;
    const std::byte* payload =
        writing_.altered.empty() ? queue_.At(writing_.sequence).payload : writing_.altered.data();
    parts[count++] = {const_cast<std::byte*>(payload) + done, writing_.payload_bytes - done};
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t written = ::sendmsg(socket_->get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written >= 0) {
      writing_.done += static_cast<size_t>(written);
      // Control frames do not count: a heartbeat on a connection whose data are stuck would look
      // like progress.
      if (!writing_.is_control) bytes_written_ += static_cast<uint64_t>(written);
      return true;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;  // an event tells when to go on
    EndWriting();
    return false;
  }
}

// Only the reading half breaks a connection; it sees the end of the stream now.
void TcpLink::EndWriting() {
  has_write_error_.store(true);
  ::shutdown(socket_->get(), SHUT_RDWR);
}

void TcpLink::FinishWriting() {
  writing_.is_active = false;
  if (writing_.is_control) return;
  // A message that was copied is finished for its caller as soon as it is written.
  if (std::shared_ptr<Transfer> transfer = queue_.Written()) {
    FinishSend(*transfer, Status());
    stream_.Notify();
  }
}

void TcpLink::FinishSend(Transfer& transfer, Status status) {
  // A cancelled send was subtracted when it was cancelled.
  if (!transfer.is_detached) sends_in_flight_.fetch_sub(1);
  if (transfer.is_send && status.ok()) {
    if (transfer.part.begin == 0) counters_.messages_sent.fetch_add(1, std::memory_order_relaxed);
    counters_.bytes_sent.fetch_add(transfer.part.bytes(), std::memory_order_relaxed);
  }
  transfer.Finish(std::move(status));
}

}  // namespace rabit

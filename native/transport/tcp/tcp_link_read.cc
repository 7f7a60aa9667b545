// The receiving half of a link.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "base/measured.h"
#include "base/socket.h"
#include "transport/tcp/tcp_link.h"

namespace rabit {
namespace {

// Read behind a payload together with it, so that a small message costs one system call.
constexpr size_t kStagingBytes = 4096;
// Frames that one call reads before others get a turn.
constexpr int kReadsMax = 64;
// The sender keeps copies of what is not acknowledged.
constexpr size_t kFramesPerAck = 32;
constexpr size_t kBytesPerAck = 1 << 20;
// Data that nobody has asked for, while an operation may wait for what lies behind: more loses the
// peer.
constexpr size_t kUnexpectedBytesMax = size_t{1} << 30;

}  // namespace

bool TcpLink::ReadAvailable() {
  // receive_mutex_ is held by whoever calls; epoll, a spinning thread and the ticker may all be in
  // here, one after another.
  if (socket_ == nullptr || is_paused_.load()) return false;
  staging_.resize(kStagingBytes);
  // A pause leaves off between header and payload; the call that ends it has read nothing new, and
  // still has something to report.
  const bool was_paused = read_state_ == ReadState::kBegin;
  bool is_drained = false;
  bool has_read = false;
  bool goes_on = ConsumeStaged();
  for (int i = 0; goes_on && !is_drained && i < kReadsMax; ++i) {
    goes_on = ReadSocket(is_drained);
    has_read = has_read || goes_on;
    goes_on = goes_on && ConsumeStaged();
  }
  if (!has_read && !was_paused) return false;  // nothing to answer or to tell
  AnswerPeer();
  stream_.Notify();
  if (goes_on && !is_drained && socket_ != nullptr) stream_.Revisit(socket_->get(), *this);
  return has_read;
}

bool TcpLink::ReadSocket(bool& is_drained) {
  iovec parts[2];
  size_t count = 0;
  size_t payload_left = 0;
  if (read_state_ == ReadState::kPayload) {
    payload_left = header_.payload_bytes - payload_done_;
    // The kernel writes payload straight into the tensor; only what lies behind it goes through the
    // staging buffer.
    parts[count++] = {PayloadEnd(), payload_left};
  }
  if (staged_begin_ > 0) {
    // At most a part of a header remains, so this moves some bytes.
    std::memmove(staging_.data(), staging_.data() + staged_begin_, staged());
    staged_end_ = staged();
    staged_begin_ = 0;
  }
  parts[count++] = {staging_.data() + staged_end_, staging_.size() - staged_end_};
  const size_t room = payload_left + parts[count - 1].iov_len;
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  ssize_t arrived;
  do {
    // Between frames, where a thread looks again and again, the cheaper call will do.
    arrived = count == 1 ? ::recv(socket_->get(), parts[0].iov_base, room, MSG_DONTWAIT)
                         : ::recvmsg(socket_->get(), &message, MSG_DONTWAIT);
  } while (arrived < 0 && errno == EINTR);
  if (arrived < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (arrived <= 0) {
    Break(arrived == 0 ? "the peer closed it" : ErrnoText(errno));
    return false;
  }
  last_heard_.store(std::chrono::steady_clock::now(), std::memory_order_relaxed);
  const auto bytes = static_cast<size_t>(arrived);
  // A short read means that the socket was empty, which spares the read that would say so. After a
  // hang-up the next read must show the end.
  is_drained = bytes < room && !has_hung_up_;
  const size_t to_payload = std::min(bytes, payload_left);
  if (to_payload > 0) AddPayload({PayloadEnd(), to_payload});
  staged_end_ += bytes - to_payload;
  return true;
}

std::byte* TcpLink::PayloadEnd() {
  if (!is_discarding_) return inbox_.destination() + payload_done_;
  // The bytes of a frame that is not wanted still have to be read: the stream has no other way past
  // them.
  scrap_.resize(kFramePayloadBytesMax);
  return scrap_.data() + payload_done_;
}

// Counts payload that lies where it belongs, while it is in the cache.
void TcpLink::AddPayload(ConstBytes piece) {
  if (!is_discarding_ && header_.is_checked()) payload_crc_ = Crc32cExtend(payload_crc_, piece);
  payload_done_ += piece.size();
}

bool TcpLink::ConsumeStaged() {
  for (;;) {
    if (read_state_ == ReadState::kHeader) {
      if (staged() < kFrameHeaderBytes) return true;
      if (!TakeHeader()) return false;
    }
    if (read_state_ == ReadState::kBegin && !BeginFrame()) return false;
    if (read_state_ != ReadState::kPayload) continue;
    const size_t bytes = std::min(staged(), header_.payload_bytes - payload_done_);
    if (bytes > 0) {
      std::memcpy(PayloadEnd(), staging_.data() + staged_begin_, bytes);
      AddPayload({PayloadEnd(), bytes});
      staged_begin_ += bytes;
    }
    if (payload_done_ < header_.payload_bytes) return true;
    if (!FinishFrame()) return false;
  }
}

bool TcpLink::TakeHeader() {
  Result<FrameHeader> header =
      DecodeFrameHeader({staging_.data() + staged_begin_, kFrameHeaderBytes});
  if (!header.ok()) {
    counters_.frames_corrupt.fetch_add(1, std::memory_order_relaxed);
    ++corrupt_total_;
    // A wrong header hides where the next frame begins, so only a new connection helps.
    Break(header.status().message());
    return false;
  }
  header_ = *header;
  // Before staged_begin_ moves: the frame may belong to the engine that uses the connection next.
  if (header_.epoch != id_.epoch) return IsOfAnotherEpoch();
  staged_begin_ += kFrameHeaderBytes;
  if (header_.link != id_.index) {
    Break("a frame for link " + std::to_string(header_.link));
    return false;
  }
  const bool is_hello = header_.type == FrameType::kHello;
  // Each connection begins with one hello, which says from which frame the other end goes on.
  if (is_hello ? was_greeted_ : !peer_answered_) {
    Break(is_hello ? "a second hello" : "a frame before the hello");
    return false;
  }
  if (!header_.is_numbered()) return HandleControl();
  if (!ApplyAck()) return false;
  read_state_ = ReadState::kBegin;
  return true;
}

bool TcpLink::HandleControl() {
  if (header_.type == FrameType::kAck) {
    connections_without_progress_ = 0;
    // The answer waits until all that has arrived is read, and then counts for all of it.
    owes_ack_ = owes_ack_ || (header_.flags & kFrameAckNow) != 0;
    return ApplyAck();
  }
  if (header_.type == FrameType::kLeave) {
    if (ApplyAck()) OnLeave("it closed its transport while this rank still waited for it");
    return false;
  }
  std::string defect;
  {
    MutexLock send(send_mutex_);
    const uint64_t from = header_.type == FrameType::kNack ? header_.sequence : header_.ack;
    // The number came from the network: what lies before it has been freed.
    if (from < queue_.first() || from > queue_.end()) {
      defect = "asked for frame " + std::to_string(from) + ", have " +
               std::to_string(queue_.first()) + " to " + std::to_string(queue_.end());
    }
  }
  if (!defect.empty()) {
    Break(defect);
    return false;
  }
  if (!ApplyAck()) return false;
  MutexLock send(send_mutex_);
  if (header_.type == FrameType::kHello) {
    OnHello();
  } else if (header_.sequence < queue_.cursor()) {
    OutFrame& frame = queue_.At(header_.sequence);
    if (++frame.times_refused >= options_.frame_attempts_max) {
      FailLocked(Lost("frame " + std::to_string(header_.sequence) + " arrived there corrupt " +
                      std::to_string(frame.times_refused) + " times"),
                 false);
      return false;
    }
    // A frame may be half written now, so the writing half rewinds when it begins the next one.
    must_rewind_ = header_.sequence;
  }
  Flush();
  return true;
}

// A peer for which the connection is new greets a link that has used it before and would not: that
// one answers, as if it were new here as well.
void TcpLink::OnHello() {
  was_greeted_ = true;
  owes_hello_ = !has_greeted_;
  if (peer_answered_) return;
  queue_.Rewind(queue_.first());
  OnAnswer();
}

void TcpLink::OnAnswer() {
  // Numbered frames may go out from here on: the peer has said what it has.
  peer_answered_ = true;
  if (was_ready_) counters_.connections_restored.fetch_add(1, std::memory_order_relaxed);
  was_ready_ = true;
  outage_deadline_.reset();
  is_ready_.store(true);
  host_.OnConnected();
}

// Takes what the peer has confirmed out of the queue.
bool TcpLink::ApplyAck() {
  // Most frames confirm nothing new, and need no lock for it. last_ack_ belongs to the receiving
  // half.
  if (header_.ack <= last_ack_ && header_.type != FrameType::kHello) return true;
  std::vector<std::shared_ptr<Transfer>> finished;
  bool is_valid;
  {
    MutexLock send(send_mutex_);
    // A frame that is half written cannot have arrived; dropping it would free what is written.
    is_valid = !(writing_.is_active && !writing_.is_control && header_.ack > writing_.sequence) &&
               queue_.Acknowledge(header_.ack, finished);
    for (const auto& transfer : finished) FinishSend(*transfer, Status());
  }
  if (!is_valid) {
    Break("acknowledged frame " + std::to_string(header_.ack) + ", which was not sent");
    return false;
  }
  if (header_.ack > last_ack_) connections_without_progress_ = 0;
  // A hello may confirm less than what was confirmed before, which is valid and changes nothing.
  last_ack_ = std::max(last_ack_, header_.ack);
  return true;
}

// Whether to leave the frame that begins in the socket for now.  What nobody has asked for would
// have to be copied, and a thread that works with the link mostly asks a moment later; only if one
// waits, for something that may lie behind, must the frame be read.
bool TcpLink::MustPause() {
  if (options_.keeps_messages) return false;
  if (!inbox_.IsUnexpected(header_)) return false;
  if (header_.payload_bytes > kEagerFrameBytesMax) return !IsWaitedFor();
  return inbox_.unexpected_bytes() + header_.payload_bytes > options_.unexpected_bytes_soft &&
         inbox_.posted() == 0 && sends_in_flight_.load() == 0;
}

bool TcpLink::IsWaitedFor() {
  MutexLock waits(waits_mutex_);
  return std::any_of(waits_.begin(), waits_.end(), [](const Transfer* transfer) {
    return !transfer->is_done.load(std::memory_order_acquire);
  });
}

// Decides where the payload of a numbered frame goes.
bool TcpLink::BeginFrame() {
  const uint64_t expected = expected_.load(std::memory_order_relaxed);
  // The peer sends again from the frame that was corrupt, or from where a connection broke; copies
  // of what is here already are dropped.
  is_discarding_ = header_.sequence < expected || awaits_resend_;
  if (header_.sequence == expected) is_discarding_ = awaits_resend_ = false;
  payload_done_ = 0;
  payload_crc_ = 0;
  if (!is_discarding_) {
    // A gap cannot happen on one connection, so the two ends disagree, and a new hello settles it.
    if (header_.sequence != expected) {
      Break("frame " + std::to_string(header_.sequence) + " instead of " +
            std::to_string(expected));
      return false;
    }
    if (header_.type == FrameType::kGoodbye) return OnGoodbye();
    if (!failure_.ok() || !inbox_.IsInOrder(header_)) {
      Break("a frame that does not continue its message");
      return false;
    }
    // The flag is set before the second look, as Send and Wait look at it after they have said what
    // they want: one of the two sees the other.
    if (MustPause()) {
      is_paused_.store(true);
      if (MustPause()) {
        return false;
      }
      is_paused_.store(false);  // a send or a wait began in between
    }
    // Memory for messages that no operation asks for is bounded, or ranks that call different
    // collectives would fill the host.
    if (inbox_.unexpected_bytes() > kUnexpectedBytesMax) {
      MutexLock send(send_mutex_);
      FailLocked(
          ResourceExhausted(PeerText() + ": it sent " + std::to_string(inbox_.unexpected_bytes()) +
                            " bytes that no operation here asks for; do all ranks call the "
                            "same collectives?")
              .WithCulprit(id_.peer),
          false);
      return false;
    }
    inbox_.Begin(header_);
  }
  read_state_ = ReadState::kPayload;
  return true;
}

bool TcpLink::FinishFrame() {
  read_state_ = ReadState::kHeader;
  if (is_discarding_) return true;
  if (header_.is_checked() && payload_crc_ != header_.payload_crc) return OnCorruptFrame();
  corrupt_copies_ = 0;
  connections_without_progress_ = 0;
  // Only now is the frame accepted: its checksum holds, so it is never asked for again.
  expected_.store(header_.sequence + 1);
  bytes_since_ack_ += header_.payload_bytes;
  ++frames_since_ack_;
  if ((header_.flags & kFrameAckNow) != 0 || frames_since_ack_ >= kFramesPerAck ||
      bytes_since_ack_ >= kBytesPerAck) {
    owes_ack_ = true;
  }
  if (std::shared_ptr<Transfer> finished = inbox_.Commit()) {
    CountReceived(*finished);
  } else if (options_.keeps_messages &&
             header_.offset + header_.payload_bytes == header_.message_bytes) {
    messages_.fetch_add(1);
    host_.OnMessage();
  }
  return true;
}

bool TcpLink::OnCorruptFrame() {
  counters_.frames_corrupt.fetch_add(1, std::memory_order_relaxed);
  ++corrupt_total_;
  // The bytes may lie in the tensor already; the copy that comes again overwrites them, and no
  // operation is finished before.
  inbox_.Rollback();
  if (++corrupt_copies_ >= options_.frame_attempts_max) {
    MutexLock send(send_mutex_);
    FailLocked(Lost("frame " + std::to_string(header_.sequence) + " arrived corrupt " +
                    std::to_string(corrupt_copies_) + " times"),
               false);
    return false;
  }
  // Frames behind this one are dropped until it comes again: they must not be delivered out of
  // order.
  awaits_resend_ = true;
  owes_nack_ = true;
  return true;
}

bool TcpLink::OnGoodbye() {
  expected_.store(header_.sequence + 1);
  owes_ack_ = true;
  read_state_ = ReadState::kHeader;
  // The peer waits for this acknowledgement before it closes, so it goes out before the link fails
  // here.
  AnswerPeer();
  // Set before the failure: a thread that sees the link fail asks next whether the peer has left in
  // good order.
  has_left_.store(true);
  MutexLock send(send_mutex_);
  FailLocked(PeerLost(id_.peer, PeerText() + ": it closed its transport while this rank still "
                                             "waited for it; see its log for why it stopped"),
             true);
  return socket_ != nullptr;
}

// The peer sends nothing more in this epoch; what came before counts.
void TcpLink::OnLeave(const std::string& why) {
  has_left_.store(true);
  MutexLock send(send_mutex_);
  SetAside();
  FailLocked(PeerLost(id_.peer, PeerText() + ": " + why + "; see its log for why it stopped"),
             true);
}

// Hands acknowledgements over to the sending half.
void TcpLink::AnswerPeer() {
  if (socket_ == nullptr) return;
  if (!owes_ack_ && !owes_nack_) return;
  MutexLock send(send_mutex_);
  if (owes_ack_) {
    must_write_ack_ = true;
    frames_since_ack_ = bytes_since_ack_ = 0;
  }
  if (owes_nack_) must_write_nack_ = expected_.load();
  owes_ack_ = owes_nack_ = false;
  Flush();
}

}  // namespace rabit

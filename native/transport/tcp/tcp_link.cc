#include "transport/tcp/tcp_link.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/socket.h"

namespace rabit {
namespace {

std::string RankText(int rank) { return "rank " + std::to_string(rank); }

// Finds a peer whose host is gone while nothing is sent.  TCP_USER_TIMEOUT would also break the
// connection with a living peer that takes no data for a while, which is legal here.
void KeepAlive(int fd) {
  const int on = 1;
  const int probes = 4;
  const int seconds = 2;  // before the first, and between them
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

// Within a host the bytes never leave memory, which has its own protection.
bool ChecksPayload(const LinkTuning& tuning, PayloadChecks checks) {
  return checks == PayloadChecks::kOn || (checks == PayloadChecks::kAuto && !tuning.is_within_host);
}

// Tuning only: a kernel that refuses an option still carries the data.
LinkTuning Tune(const KeptSocket& socket, const TcpOptions& options) {
  const int fd = socket.fd.get();
  const LinkTuning tuning{
      .is_within_host = socket.tuning ? socket.tuning->is_within_host : IsWithinHost(fd),
      .is_many_to_one = options.is_many_to_one};
  if (socket.tuning == tuning) return tuning;
  (void)SetNoDelay(fd);
  if (tuning.is_many_to_one || tuning.is_within_host) TakeReno(fd);
  KeepAlive(fd);
  return tuning;
}

}  // namespace

TcpLink::TcpLink(Id id, const TcpOptions& options, TcpCounters& counters, TcpStream& stream,
                 TcpLinkHost& host)
    : id_(id),
      options_(options),
      counters_(counters),
      stream_(stream),
      host_(host),
      inbox_(RankText(id.rank), RankText(id.peer), id.stripe),
      queue_(options.copied_bytes_max, options.retained_bytes_max) {}

TcpLink::~TcpLink() {
  // The receiving half is locked before the sending half, here and everywhere: reading ends in
  // answers, so it takes the other lock while it holds its own.
  MutexLock receive(receive_mutex_);
  MutexLock send(send_mutex_);
  DropSocket();
}

void TcpLink::Attach(KeptSocket socket) {
  const LinkTuning tuning = Tune(socket, options_);
  const bool was_used = socket.was_used();
  {
    MutexLock receive(receive_mutex_);
    {
      MutexLock send(send_mutex_);
      // A link that has failed stays so: its operations have ended with the cause already.
      if (!failure_.ok()) return;
      DropSocket();
      ResetConnection();
      tuning_ = tuning;
      checks_payload_ = ChecksPayload(tuning, options_.payload_checks);
      // An epoch before this one may have left bytes that were read too far, or a frame that is
      // half written.
      GoOnFrom(socket);
      socket_ = std::make_shared<UniqueFd>(std::move(socket.fd));
      is_connected_.store(true);
      attached_ = std::chrono::steady_clock::now();
      last_heard_.store(attached_);
      // On a connection that both ends have kept there is no one to greet: its numbers go on. The
      // first link greets, so that the two ends find out whether both have kept it.
      if (was_used && id_.index > 0) {
        OnAnswer();
      } else {
        owes_hello_ = true;
      }
      if (Status status = stream_.Add(socket_->get(), *this); !status.ok())
        return FailLocked(status, false);
      Flush();
    }
    if (staged() > 0) ReadAvailable();  // no event tells of it
  }
  stream_.Notify();
}

std::shared_ptr<Transfer> TcpLink::Send(Tag tag, ConstBytes buffer, bool is_answered) {
  stream_.Touch();
  auto transfer = std::make_shared<Transfer>(true, tag, buffer.size(), id_.stripe);
  transfer->is_answered = is_answered;
  {
    MutexLock send(send_mutex_);
    if (!failure_.ok()) {
      transfer->Finish(failure_);
      return transfer;
    }
    sends_in_flight_.fetch_add(1);
    // The frames refer to the caller's buffer unless they are small enough to be copied, and may be
    // written a second time until the peer has acknowledged them.
    queue_.Push(transfer, buffer, static_cast<uint8_t>(id_.index));
    Flush();
  }
  // A thread that works with the link again may be about to ask for the frame that was left in the
  // socket. Without the send lock, which comes second.
  if (is_paused_.load()) Resume();
  return transfer;
}

std::shared_ptr<Transfer> TcpLink::Recv(Tag tag, Bytes buffer) {
  stream_.Touch();
  auto transfer = std::make_shared<Transfer>(false, tag, buffer.size(), id_.stripe);
  transfer->buffer = buffer;
  MutexLock receive(receive_mutex_);
  inbox_.Post(transfer);
  // The message was here before its receive.
  if (transfer->is_done.load(std::memory_order_relaxed) && transfer->status.ok()) {
    CountReceived(*transfer);
  }
  if (is_paused_.load()) {
    is_paused_.store(false);
    ReadAvailable();
  }
  return transfer;
}

Status TcpLink::Post(Tag tag, ConstBytes message, size_t queued_bytes_max) {
  stream_.Touch();
  MutexLock send(send_mutex_);
  if (!failure_.ok()) return failure_;
  // Messages wait here and not in the caller, who must not block; so their number needs a bound.
  if (queue_.retained_bytes() + message.size() > queued_bytes_max) {
    return ResourceExhausted(std::to_string(queue_.retained_bytes()) + " bytes wait for " +
                             RankText(id_.peer) + ", which does not take them; it may hang");
  }
  sends_in_flight_.fetch_add(1);
  queue_.Push(std::make_shared<Transfer>(true, tag, message.size(), id_.stripe), message,
              static_cast<uint8_t>(id_.index));
  Flush();
  return Status();
}

std::optional<std::vector<std::byte>> TcpLink::Take(Tag tag) {
  MutexLock receive(receive_mutex_);
  std::optional<std::vector<std::byte>> message = inbox_.Take(tag);
  if (message) {
    messages_.fetch_sub(1);
    counters_.messages_received.fetch_add(1, std::memory_order_relaxed);
    counters_.bytes_received.fetch_add(message->size(), std::memory_order_relaxed);
  }
  return message;
}

void TcpLink::CountReceived(const Transfer& transfer) {
  if (transfer.part.begin == 0) {
    counters_.messages_received.fetch_add(1, std::memory_order_relaxed);
  }
  counters_.bytes_received.fetch_add(transfer.part.bytes(), std::memory_order_relaxed);
}

void TcpLink::Cancel(const Transfer& transfer) {
  if (transfer.is_send) {
    MutexLock send(send_mutex_);
    if (queue_.Detach(transfer)) sends_in_flight_.fetch_sub(1);
  } else {
    MutexLock receive(receive_mutex_);
    inbox_.Cancel(transfer);
  }
}

void TcpLink::Fail(const Status& why) {
  MutexLock receive(receive_mutex_);
  MutexLock send(send_mutex_);
  FailLocked(why, false);
}

void TcpLink::Abort(const Status& why) {
  MutexLock receive(receive_mutex_);
  MutexLock send(send_mutex_);
  if (!failure_.ok()) return;
  // The connection may serve the next epoch, so half a frame is kept aside to be finished rather
  // than cut.
  SetAside();
  FailLocked(why, false);
}

std::shared_ptr<Transfer> TcpLink::StartClose() {
  auto goodbye = std::make_shared<Transfer>(false, 0, 0, Stripe{});
  MutexLock receive(receive_mutex_);
  MutexLock send(send_mutex_);
  // A break from here on is an end and not an outage: nothing is dialled any more.
  is_closing_ = true;
  if (!failure_.ok() || socket_ == nullptr || !peer_answered_) {
    goodbye->Finish(failure_.ok() ? Aborted("closed") : failure_);
    return goodbye;
  }
  // The peer's acknowledgement must be read even if nobody asked for what lies before it.
  sends_in_flight_.fetch_add(1);
  is_paused_.store(false);
  queue_.PushGoodbye(goodbye, static_cast<uint8_t>(id_.index));
  Flush();
  return goodbye;
}

Status TcpLink::failure() {
  MutexLock receive(receive_mutex_);
  return failure_;
}

bool TcpLink::HasSentAll() {
  MutexLock send(send_mutex_);
  // What has no connection cannot be sent by waiting.
  if (socket_ == nullptr || has_write_error_.load()) return true;
  Flush();
  int unsent = 0;
  return !writing_.is_active && queue_.Next() == nullptr &&
         (::ioctl(socket_->get(), SIOCOUTQNSD, &unsent) != 0 || unsent == 0);
}

std::optional<Deadline> TcpLink::outage_deadline() {
  MutexLock receive(receive_mutex_);
  return outage_deadline_;
}

void TcpLink::Serve(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    MutexLock send(send_mutex_);
    Flush();
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  MutexLock receive(receive_mutex_);
  // The event comes once, so it is remembered: a read that fills less than its buffer no longer
  // means that the socket is empty.
  has_hung_up_ = has_hung_up_ || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  // A paused link does not read, and would not see the end of the connection.
  if (is_paused_.load() && (events & (EPOLLHUP | EPOLLERR)) != 0) {
    Break("the peer closed it");
  } else {
    ReadAvailable();
  }
}

void TcpLink::Resume() {
  MutexLock receive(receive_mutex_);
  is_paused_.store(false);
  ReadAvailable();
}

bool TcpLink::ReadNow() {
  MutexLock receive(receive_mutex_);
  return ReadAvailable();
}

Status TcpLink::Wait(const Transfer& transfer, Deadline deadline) {
  if (!transfer.is_done.load(std::memory_order_acquire)) {
    {
      MutexLock waits(waits_mutex_);
      // MustPause looks at these: a frame that is in the way of a waiting thread must be read.
      waits_.push_back(&transfer);
    }
    if (is_paused_.load()) Resume();
    if (transfer.is_answered) {
      MutexLock send(send_mutex_);
      AskFor(transfer);
    }
    // Spinning pays if the answer comes before another thread gets the core; for much data it does
    // not.
    const size_t call_bytes = stream_.call_bytes();
    const size_t bytes = call_bytes != SIZE_MAX ? call_bytes : transfer.bytes;
    stream_.Wait(transfer.is_done, *this, bytes <= options_.spin_bytes_max, deadline);
    MutexLock waits(waits_mutex_);
    std::erase(waits_, &transfer);
  }
  if (transfer.is_done.load(std::memory_order_acquire)) return transfer.status;
  return NotFinished(transfer);
}

Status TcpLink::NotFinished(const Transfer& transfer) {
  std::string state = "the peer has not answered before the deadline";
  {
    MutexLock receive(receive_mutex_);
    if (socket_ == nullptr) state = "the connection is broken (" + break_reason_ + ")";
  }
  return TimedOut("rank " + std::to_string(id_.rank) + ": " +
                  (transfer.is_send ? "send of " : "receive of ") + std::to_string(transfer.bytes) +
                  " bytes " + (transfer.is_send ? "to" : "from") + " rank " +
                  std::to_string(id_.peer) + " (TCP link " + std::to_string(id_.index) + ", tag " +
                  std::to_string(transfer.tag) + ") is not finished: " + state);
}

void TcpLink::Break(const std::string& reason) {
  MutexLock send(send_mutex_);
  if (socket_ == nullptr) return;
  // The frames stay in the queue: a new connection goes on where the peer says that it stopped.
  DropSocket();
  ResetConnection();
  if (!failure_.ok()) return;
  break_reason_ = reason;
  if (is_closing_) return FailLocked(Aborted("the transport is closed"), false);
  // A peer that accepts and breaks at once would otherwise be dialled forever.
  if (++connections_without_progress_ >= options_.connections_without_progress_max) {
    return FailLocked(Lost("the connection broke " + std::to_string(connections_without_progress_) +
                           " times in a row before anything arrived, the last time: " + reason),
                      false);
  }
  if (!outage_deadline_) outage_deadline_ = After(options_.reconnect_window);
  // Under both locks: the host only queues the link and wakes its threads.
  host_.OnBroken(id_.peer, id_.index);
  stream_.Notify();
}

void TcpLink::FailLocked(const Status& why, bool keep_arrived) {
  if (!failure_.ok()) return;
  // The first cause stays: later ones follow from it.
  failure_ = why;
  has_failed_.store(true);
  outage_deadline_.reset();
  // The acknowledgement of a goodbye must still go out, but not behind half a frame that is gone.
  const bool has_half_a_frame = writing_.is_active && !writing_.is_control;
  if (!keep_arrived || has_half_a_frame) {
    DropSocket();
    ResetConnection();
  }
  inbox_.Fail(why, keep_arrived || options_.keeps_messages);
  // Waiting threads may return at once, and with them the buffers go. Nothing reads those any more,
  // since the queue is empty and the socket is dropped or has no frame half written.
  for (const auto& transfer : queue_.Clear()) transfer->Finish(why);
  sends_in_flight_.store(0);
  if (!keep_arrived) host_.OnFailed(id_.peer, why);
  stream_.Notify();
}

void TcpLink::DropSocket() {
  if (socket_ == nullptr) return;
  is_connected_.store(false);
  stream_.Remove(socket_->get());
  // Another thread may hold the descriptor a moment longer; shut down, it carries nothing more.
  ::shutdown(socket_->get(), SHUT_RDWR);
  socket_.reset();
}

void TcpLink::ResetConnection() {
  is_ready_.store(false);
  // Of a frame that came in part nothing counts: the peer sends it again as a whole.
  inbox_.Rollback();
  read_state_ = ReadState::kHeader;
  staged_begin_ = staged_end_ = 0;
  is_discarding_ = awaits_resend_ = false;
  owes_ack_ = owes_nack_ = has_hung_up_ = false;
  is_paused_.store(false);
  writing_ = Writing{};
  owes_hello_ = has_greeted_ = was_greeted_ = peer_answered_ = false;
  must_write_ack_ = wants_answer_ = false;
  bytes_written_ = 0;
  must_write_nack_.reset();
  must_rewind_.reset();
  leftover_.clear();
  leftover_done_ = 0;
  has_write_error_.store(false);
}

Status TcpLink::Lost(const std::string& reason) const {
  std::string corrupt;
  if (corrupt_total_ > 0) {
    corrupt = " (frames corrupt on this link: " + std::to_string(corrupt_total_) + ")";
  }
  return PeerLost(id_.peer, PeerText() + ": " + reason + corrupt +
                                "; check that process, its host and the network between");
}

std::string TcpLink::PeerText() const {
  return RankText(id_.rank) + " lost " + RankText(id_.peer) + " on TCP link " +
         std::to_string(id_.index);
}

}  // namespace rabit

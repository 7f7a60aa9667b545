// Whether a link's connection still works: outages, silence, and what makes no way.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "transport/tcp/tcp_link.h"

namespace rabit {
namespace {

// Connections in a row on which the peer's kernel took nothing but the hello.
constexpr int kDeafStallsMax = 2;
// A peer that works on something else for long may leave a frame in its socket, which looks like a
// stall: such a connection is made anew less and less often.
constexpr int kStallDoublingsMax = 5;

// A connection that is newer is not the one that broke.
constexpr std::chrono::seconds kAnswerTime{1};

}  // namespace

void TcpLink::CheckOutage(Deadline now) {
  MutexLock receive(receive_mutex_);
  // The I/O thread. The connection may have come back since the link was put on the list.
  if (!outage_deadline_ || now < *outage_deadline_) return;
  MutexLock send(send_mutex_);
  FailLocked(Lost("the connection broke (" + break_reason_ + ") and did not come back within " +
                  std::to_string(options_.reconnect_window.count()) + " ms"),
             false);
}

void TcpLink::Lose(const std::string& why) {
  MutexLock receive(receive_mutex_);
  if (!outage_deadline_) return;  // it is back
  MutexLock send(send_mutex_);
  FailLocked(PeerLost(id_.peer, PeerText() + ": " + why), false);
}

void TcpLink::NoteBrokenBy(const std::string& reason) {
  MutexLock receive(receive_mutex_);
  if (outage_deadline_) break_reason_ = reason;
}

void TcpLink::Renew(Deadline now) {
  MutexLock receive(receive_mutex_);
  // A peer that gets hardly any core has asked before it took the connection that was just made.
  if (is_connected() && now - attached_ < kAnswerTime) return;
  Break("the peer found it broken");
}

void TcpLink::Beat() {
  MutexLock send(send_mutex_);
  if (!peer_answered_) return;
  // An acknowledgement is the heartbeat: it goes out even if there is nothing to confirm.
  must_write_ack_ = true;
  Flush();
}

Deadline TcpLink::CheckSilence(Deadline now, const Heartbeat& heartbeat) {
  const auto limit = heartbeat.silence_max();
  // Without a lock, since this is the rule and the look repeats for every peer.
  if (now - last_heard_.load() <= limit / 2) return last_heard_.load() + limit;
  MutexLock receive(receive_mutex_);
  ReadAvailable();  // its signs of life may lie unread
  const Deadline end = last_heard_.load() + limit;
  if (!failure_.ok()) return Deadline::max();
  const auto silence = now - last_heard_.load();
  // Half of the time is left for a new connection: the network may have dropped this one silently.
  if (silence > limit / 2 && now < end) Break("nothing was heard for " + InSeconds(silence));
  if (now < end) return end;
  MutexLock send(send_mutex_);
  FailLocked(Lost("it has been silent for " + InSeconds(silence) + " (heartbeat timeout " +
                  InSeconds(heartbeat.timeout()) + "): it hangs, is stopped, or cannot be reached"),
             false);
  return Deadline::max();
}

bool TcpLink::HasUnconfirmed() const {
  return socket_ != nullptr && peer_answered_ &&
         (queue_.first() < queue_.cursor() || (writing_.is_active && !writing_.is_control));
}

uint64_t TcpLink::BytesTaken() const {
  int unconfirmed = 0;
  // What the peer's kernel has confirmed counts as progress even if the peer itself reads nothing
  // for long.
  if (socket_ == nullptr || ::ioctl(socket_->get(), SIOCOUTQ, &unconfirmed) != 0) return 0;
  return bytes_written_ - std::min(bytes_written_, static_cast<uint64_t>(unconfirmed));
}

bool TcpLink::IsStalled(Deadline now) {
  const uint64_t taken = BytesTaken();
  const bool has_acknowledged = queue_.first() != progress_.first;
  // Both locks are held: the state below belongs to the sending half.
  if (has_acknowledged) progress_.stalls = progress_.deaf_stalls = 0;
  if (!HasUnconfirmed() || has_acknowledged || taken > progress_.bytes_taken) {
    progress_.first = queue_.first();
    progress_.bytes_taken = taken;
    progress_.since = now;
    progress_.has_asked = false;
    return false;
  }
  const auto limit =
      options_.progress_timeout * (1 << std::min(progress_.stalls, kStallDoublingsMax));
  if (now - progress_.since >= limit) return true;
  if (now - progress_.since >= limit / 3 && !progress_.has_asked) {
    // Small messages are acknowledged late, or not before this.
    progress_.has_asked = must_write_ack_ = wants_answer_ = true;
    Flush();
  }
  return false;
}

void TcpLink::CheckProgress(Deadline now) {
  if (options_.progress_timeout.count() == 0) return;
  MutexLock receive(receive_mutex_);
  std::string reason;
  {
    MutexLock send(send_mutex_);
    if (!IsStalled(now)) return;
  }
  ReadAvailable();  // the answer may lie unread, where this process gets hardly any core
  {
    MutexLock send(send_mutex_);
    if (!IsStalled(now)) return;
    const uint64_t frames = queue_.cursor() - queue_.first();
    reason = std::to_string(frames) + " frames made no way for " + InSeconds(now - progress_.since);
    ++progress_.stalls;
    const bool is_deaf = BytesTaken() == 0;
    if (is_deaf && ++progress_.deaf_stalls >= kDeafStallsMax) {
      return FailLocked(Lost(reason + " on each of " + std::to_string(kDeafStallsMax) +
                             " connections, on which only the first bytes passed: see whether a "
                             "firewall or a wrong MTU drops the rest"),
                        false);
    }
    progress_.since = now;
    progress_.bytes_taken = 0;
  }
  connections_without_progress_ = 0;  // it is the clock that bounds these tries
  Break(reason);
}

}  // namespace rabit

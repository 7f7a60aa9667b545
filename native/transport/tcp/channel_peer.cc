#include "transport/tcp/channel_peer.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/socket.h"
#include "base/wire.h"
#include "transport/channel_options.h"

namespace rabit {
namespace {

constexpr size_t kReadBytes = 16 * 1024;

// Bytes taken by the kernel, 0 if it takes none now, or minus the error number.
ssize_t SendSome(int fd, std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  for (;;) {
    const ssize_t put = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) return put;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -errno;
  }
}

// Closing with unread input resets the connection and drops what is not sent yet, a goodbye for
// instance.  Waiting for the acknowledgement too would cost every job the 40 ms it may be delayed.
void DrainUntilSent(int fd, Deadline deadline) {
  std::array<std::byte, 4096> ignored;
  for (;;) {
    while (::recv(fd, ignored.data(), ignored.size(), MSG_DONTWAIT) > 0) {
    }
    int unsent = 0;
    if (::ioctl(fd, SIOCOUTQNSD, &unsent) != 0 || unsent == 0) return;
    if (std::chrono::steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // no event tells of it
  }
}

iovec Part(ConstBytes bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg does not write to it
}

}  // namespace

std::string ChannelPeer::ToString() const {
  std::string text = "rank " + std::to_string(rank_);
  if (introduction_.host.empty()) return text;
  return text + " (host " + introduction_.host + ", pid " + std::to_string(introduction_.pid) + ")";
}

Status ChannelPeer::SendIntroduction(Deadline deadline) {
  const std::vector<std::byte> payload = EncodeIntroduction(OwnIntroduction());
  MutexLock lock(mutex_);
  const ChannelHeader header =
      EncodeChannelHeader(ChannelFrameKind::kIntroduction, next_sent_++, payload);
  RABIT_RETURN_IF_ERROR(WriteFull(fd_.get(), header, deadline));
  return WriteFull(fd_.get(), payload, deadline);
}

Status ChannelPeer::ReadIntroduction(Deadline deadline) {
  ChannelHeader header;
  RABIT_RETURN_IF_ERROR(ReadFull(fd_.get(), header, deadline));
  RABIT_ASSIGN_OR_RETURN(const ChannelFrameInfo info,
                         DecodeChannelHeader(header, next_received_++));
  std::vector<std::byte> payload(info.payload_bytes);
  RABIT_RETURN_IF_ERROR(ReadFull(fd_.get(), payload, deadline));
  RABIT_RETURN_IF_ERROR(CheckChannelFrame(header, payload));
  RABIT_ASSIGN_OR_RETURN(introduction_, DecodeIntroduction(payload));
  return {};
}

Status ChannelPeer::Watch(Poller& poller) {
  last_heard_ = std::chrono::steady_clock::now();
  return poller.Add(fd_.get(), static_cast<uint64_t>(rank_), true, false);
}

Status ChannelPeer::Send(Poller& poller, ConstBytes message, std::deque<ChannelEvent>& events) {
  if (state_ == State::kOpen) {
    Status status;
    {
      MutexLock lock(mutex_);
      status = SendFrame(ChannelFrameKind::kMessage, message, poller);
    }
    if (status.code() != Code::kPeerLost) return status;
    // A goodbye may lie unread in front of the error.
    while (Read(poller, events)) {
    }
    Lose(poller, "closed its connection without saying goodbye: " + status.message(), events);
  }
  if (state_ == State::kGone) {
    return Aborted(ToString() + " has left the job: nothing can be sent to it");
  }
  return PeerLost(rank_, ToString() + " is lost: nothing can be sent to it");
}

Status ChannelPeer::SendFrame(ChannelFrameKind kind, ConstBytes payload, Poller& poller) {
  if (kind == ChannelFrameKind::kMessage &&
      output_bytes_ + payload.size() > kChannelQueueBytesMax) {
    return ResourceExhausted(std::to_string(output_bytes_) + " bytes wait for " + ToString() +
                             ", which does not take them; it may hang");
  }
  const ChannelHeader header = EncodeChannelHeader(kind, next_sent_, payload);
  const size_t total = header.size() + payload.size();
  size_t sent = 0;
  if (output_.empty()) {
    std::array<iovec, 2> parts = {Part(header), Part(payload)};
    const ssize_t put = SendSome(fd_.get(), std::span(parts).first(payload.empty() ? 1 : 2));
    if (put < 0) return PeerLost(rank_, ErrnoText(static_cast<int>(-put)));
    sent = static_cast<size_t>(put);
  }
  ++next_sent_;
  has_sent_since_beat_ = true;
  if (sent == total) return {};
  std::vector<std::byte> rest;
  rest.reserve(total - sent);
  if (sent < header.size())
    rest.insert(rest.end(), header.begin() + static_cast<std::ptrdiff_t>(sent), header.end());
  const ConstBytes unsent = payload.subspan(sent > header.size() ? sent - header.size() : 0);
  rest.insert(rest.end(), unsent.begin(), unsent.end());
  output_bytes_ += rest.size();
  output_.push_back(std::move(rest));
  has_output_.store(true, std::memory_order_relaxed);
  WatchOutput(poller);
  return {};
}

void ChannelPeer::WatchOutput(Poller& poller) {
  const bool wants = !output_.empty();
  if (wants == is_output_watched_ || !fd_.is_open()) return;
  if (poller.Change(fd_.get(), static_cast<uint64_t>(rank_), true, wants).ok()) {
    is_output_watched_ = wants;
  }
}

int ChannelPeer::WriteQueue() {
  while (!output_.empty()) {
    std::array<iovec, 16> parts;
    const size_t count = std::min(parts.size(), output_.size());
    for (size_t i = 0; i < count; ++i) parts[i] = Part(output_[i]);
    parts[0] = Part(ConstBytes(output_[0]).subspan(output_sent_));
    const ssize_t put = SendSome(fd_.get(), std::span(parts).first(count));
    if (put <= 0) return static_cast<int>(-put);
    output_bytes_ -= static_cast<size_t>(put);
    output_sent_ += static_cast<size_t>(put);
    while (!output_.empty() && output_sent_ >= output_.front().size()) {
      output_sent_ -= output_.front().size();
      output_.pop_front();
    }
  }
  has_output_.store(false, std::memory_order_relaxed);
  return 0;
}

// A write error needs no report here: the connection is then readable too, and Read tells why.
void ChannelPeer::Flush(Poller& poller) {
  if (state_ != State::kOpen) return;
  MutexLock lock(mutex_);
  WriteQueue();
  WatchOutput(poller);
}

void ChannelPeer::SendBeat(Poller& poller) {
  MutexLock lock(mutex_);
  if (!fd_.is_open()) return;
  if (!output_.empty()) {
    WriteQueue();
    WatchOutput(poller);
  } else if (!has_sent_since_beat_) {
    const Status ignored = SendFrame(ChannelFrameKind::kBeat, {}, poller);
  }
  has_sent_since_beat_ = false;
}

bool ChannelPeer::Read(Poller& poller, std::deque<ChannelEvent>& events) {
  if (state_ != State::kOpen) return false;
  if (input_.size() - input_end_ < kReadBytes / 2) {
    // Move the unfinished frame to the front; a large one grows the buffer as it arrives.
    std::copy(input_.begin() + static_cast<std::ptrdiff_t>(input_begin_),
              input_.begin() + static_cast<std::ptrdiff_t>(input_end_), input_.begin());
    input_end_ -= input_begin_;
    input_begin_ = 0;
    if (input_.size() - input_end_ < kReadBytes)
      input_.resize(std::max(2 * input_end_, kReadBytes) + kReadBytes);
  }
  const ssize_t got =
      ::recv(fd_.get(), input_.data() + input_end_, input_.size() - input_end_, MSG_DONTWAIT);
  if (got > 0) {
    input_end_ += static_cast<size_t>(got);
    last_heard_ = std::chrono::steady_clock::now();
    Parse(poller, events);
    return true;
  }
  if (got == 0) {
    Lose(poller,
         "closed its connection without saying goodbye: its process died or was killed; "
         "its own output tells why",
         events);
  } else if (errno == ECONNRESET || errno == EPIPE) {
    Lose(poller,
         "closed its connection without saying goodbye (reset): its process died or was "
         "killed; its own output tells why",
         events);
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    Lose(poller, "is unreachable: " + ErrnoText(errno) + "; check its host and the network",
         events);
  }
  return false;
}

void ChannelPeer::Parse(Poller& poller, std::deque<ChannelEvent>& events) {
  while (state_ == State::kOpen && input_end_ - input_begin_ >= kChannelHeaderBytes) {
    const ConstBytes input = ConstBytes(input_).subspan(input_begin_, input_end_ - input_begin_);
    Result<ChannelFrameInfo> info = DecodeChannelHeader(input, next_received_);
    if (!info.ok()) return Lose(poller, info.status().message(), events);
    const size_t total = kChannelHeaderBytes + info->payload_bytes;
    if (input.size() < total) return;
    const ConstBytes payload = input.subspan(kChannelHeaderBytes, info->payload_bytes);
    Status status = CheckChannelFrame(input.first(kChannelHeaderBytes), payload);
    if (status.ok()) status = Handle(*info, payload, poller, events);
    if (!status.ok()) return Lose(poller, status.message(), events);
    input_begin_ += total;
    ++next_received_;
  }
  if (input_begin_ == input_end_) {
    input_begin_ = input_end_ = 0;
    // The buffer of a rare large message is not kept.
    if (input_.size() > 4 * kReadBytes) input_ = {};
  }
}

Status ChannelPeer::Handle(const ChannelFrameInfo& info, ConstBytes payload, Poller& poller,
                           std::deque<ChannelEvent>& events) {
  switch (info.kind) {
    case ChannelFrameKind::kMessage:
      events.push_back({{rank_, {payload.begin(), payload.end()}}, {}});
      return {};
    case ChannelFrameKind::kBeat:
      return {};
    case ChannelFrameKind::kGoodbye:
      Disconnect(poller, State::kGone);
      return {};
    case ChannelFrameKind::kIntroduction:
      break;
  }
  return Internal("introduced itself twice; run the same version of rabit on every host");
}

void ChannelPeer::Lose(Poller& poller, const std::string& why, std::deque<ChannelEvent>& events) {
  if (state_ != State::kOpen) return;
  events.push_back({{}, PeerLost(rank_, ToString() + " " + why)});
  Disconnect(poller, State::kLost);
}

void ChannelPeer::Disconnect(Poller& poller, State state) {
  state_ = state;
  MutexLock lock(mutex_);
  poller.Remove(fd_.get());
  fd_.reset();
  output_.clear();
  output_bytes_ = output_sent_ = 0;
  has_output_.store(false, std::memory_order_relaxed);
}

void ChannelPeer::Close(Poller& poller, Deadline deadline) {
  if (state_ != State::kOpen) return;
  {
    MutexLock lock(mutex_);
    Status status = SendFrame(ChannelFrameKind::kGoodbye, {}, poller);
    while (status.ok() && WriteQueue() == 0 && !output_.empty()) {
      status = WaitWritable(fd_.get(), deadline);
    }
    ::shutdown(fd_.get(), SHUT_WR);
    DrainUntilSent(fd_.get(), deadline);
  }
  Disconnect(poller, State::kGone);
}

}  // namespace rabit

// How a connection goes from a link to one of a later epoch.
//
// Both ends stop between two frames, each at a time of its own: what was written whole arrives, what
// was begun is written to its end, and a frame says that nothing of the epoch follows.  Every frame
// has an epoch, so whatever of an earlier one is still on its way is told apart and dropped.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/tcp/tcp_link.h"

namespace rabit {

std::optional<KeptSocket> TcpLink::Retire(const Status& why) {
  MutexLock receive(receive_mutex_);
  MutexLock send(send_mutex_);
  is_closing_ = true;
  SetAside();
  FailLocked(why, false);
  return std::exchange(kept_, std::nullopt);
}

// What is left of the frame that is being written.  Its buffer is borrowed no longer than until the
// link fails.
std::vector<std::byte> TcpLink::RestOfFrame() {
  std::vector<std::byte> rest(leftover_.begin() + static_cast<std::ptrdiff_t>(leftover_done_),
                              leftover_.end());
  if (!writing_.is_active || writing_.done == 0) return rest;
  const size_t of_header = std::min(writing_.done, kFrameHeaderBytes);
  const size_t of_payload = writing_.done - of_header;
  rest.insert(rest.end(), writing_.header.begin() + static_cast<std::ptrdiff_t>(of_header),
              writing_.header.end());
  if (writing_.payload_bytes == 0) return rest;
  const std::byte* const payload =
      writing_.altered.empty() ? queue_.At(writing_.sequence).payload : writing_.altered.data();
  rest.insert(rest.end(), payload + of_payload, payload + writing_.payload_bytes);
  return rest;
}

void TcpLink::SetAside() {
  if (!id_.is_kept || socket_ == nullptr || has_write_error_.load()) return;
  KeptSocket kept;
  if (read_state_ != ReadState::kHeader) kept.to_discard = header_.payload_bytes - payload_done_;
  kept.unread.assign(staging_.begin() + static_cast<std::ptrdiff_t>(staged_begin_),
                     staging_.begin() + static_cast<std::ptrdiff_t>(staged_end_));
  kept.unsent = RestOfFrame();
  FrameHeaderBytes leave;
  EncodeFrameHeader({.type = FrameType::kLeave,
                     .link = static_cast<uint8_t>(id_.index),
                     .ack = expected_.load(),
                     .epoch = id_.epoch},
                    leave);
  kept.unsent.insert(kept.unsent.end(), leave.begin(), leave.end());
  stream_.Remove(socket_->get());
  is_connected_.store(false);
  kept.fd = std::move(*socket_);
  kept.tuning = tuning_;
  socket_.reset();
  ResetConnection();
  kept_ = std::move(kept);
  SendAside();
}

// As much as the kernel takes: the peer may wait for it in the epoch that ends.  The rest is for the
// next link.
void TcpLink::SendAside() {
  size_t done = 0;
  std::vector<std::byte>& unsent = kept_->unsent;
  while (done < unsent.size()) {
    const ssize_t put = ::send(kept_->fd.get(), unsent.data() + done, unsent.size() - done,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return kept_.reset();
    if (put < 0) break;
    done += static_cast<size_t>(put);
  }
  unsent.erase(unsent.begin(), unsent.begin() + static_cast<std::ptrdiff_t>(done));
}

void TcpLink::GoOnFrom(KeptSocket& socket) {
  leftover_ = std::move(socket.unsent);
  staging_.resize(std::max(staging_.size(), socket.unread.size()));
  std::copy(socket.unread.begin(), socket.unread.end(), staging_.begin());
  staged_end_ = socket.unread.size();
  if (socket.to_discard == 0) return;
  header_ = {.payload_bytes = static_cast<uint32_t>(socket.to_discard), .epoch = id_.epoch - 1};
  payload_done_ = 0;
  is_discarding_ = true;
  read_state_ = ReadState::kPayload;
}

bool TcpLink::WriteLeftover() {
  while (leftover_done_ < leftover_.size()) {
    const ssize_t put = ::send(socket_->get(), leftover_.data() + leftover_done_,
                               leftover_.size() - leftover_done_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (put < 0) {
      EndWriting();
      return false;
    }
    leftover_done_ += static_cast<size_t>(put);
  }
  return true;
}

// The header that is in staging_ still.  True: its frame is late, and is being dropped.
bool TcpLink::IsOfAnotherEpoch() {
  if (!id_.is_kept) {
    Break("a frame of epoch " + std::to_string(header_.epoch) + " in epoch " +
          std::to_string(id_.epoch));
    return false;
  }
  if (static_cast<int32_t>(header_.epoch - id_.epoch) > 0) {
    OnLeave("it has gone on to epoch " + std::to_string(header_.epoch) + "; this engine is of epoch " +
            std::to_string(id_.epoch));
    return false;
  }
  counters_.frames_late.fetch_add(1, std::memory_order_relaxed);
  staged_begin_ += kFrameHeaderBytes;
  payload_done_ = 0;
  is_discarding_ = true;
  read_state_ = ReadState::kPayload;
  return true;
}

}  // namespace rabit

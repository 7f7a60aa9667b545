// How threads wait for a link: the first one reads the socket, the others wait for it.
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>

#include "transport/tcp/tcp_link.h"

namespace rabit {
namespace {

// Sleeps until something is ready or the deadline; false on an error that is not EINTR.
void PollUntil(pollfd* entries, nfds_t count, Deadline deadline) {
  const auto left =
      std::clamp<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now(),
                                           std::chrono::nanoseconds(0), std::chrono::hours(1));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(seconds.count());
  timeout.tv_nsec = static_cast<long>((left - seconds).count());
  ::ppoll(entries, count, &timeout, nullptr);
}

}  // namespace

Status TcpLink::Wait(const Transfer& transfer, Deadline deadline) {
  while (!transfer.is_done.load(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() >= deadline) return NotFinished(transfer);
    if (!BecomePoller(transfer, deadline)) continue;
    Poll(transfer, deadline);
    StopPolling();
  }
  return transfer.status;
}

// False if the transfer is done, or at the deadline.
bool TcpLink::BecomePoller(const Transfer& transfer, Deadline deadline) {
  MutexLock wait(wait_mutex_);
  while (is_polling_) {
    if (transfer.is_done.load(std::memory_order_acquire)) return false;
    ++waiters_;
    const bool is_in_time = wait_condition_.WaitUntil(wait_mutex_, deadline);
    --waiters_;
    if (!is_in_time) return false;
  }
  is_polling_ = true;
  poller_ = std::this_thread::get_id();
  return true;
}

void TcpLink::Poll(const Transfer& transfer, Deadline deadline) {
  const auto is_over = [&] {
    return transfer.is_done.load(std::memory_order_acquire) ||
           std::chrono::steady_clock::now() >= deadline;
  };
  const Deadline spin_end = std::min(deadline, After(options_.spin_max));
  do {
    MutexLock receive(receive_mutex_);
    ReadAvailable();
  } while (!transfer.is_done.load(std::memory_order_acquire) &&
           std::chrono::steady_clock::now() < spin_end);
  if (is_over()) return;

  UpdateInterest();
  while (!is_over()) {
    std::shared_ptr<UniqueFd> socket;
    pollfd entries[2] = {{-1, 0, 0}, {wake_.get(), POLLIN, 0}};
    {
      MutexLock receive(receive_mutex_);
      socket = socket_;
    }
    if (socket != nullptr) {
      entries[0].fd = socket->get();
      entries[0].events = static_cast<short>(POLLIN | (is_write_blocked_.load() ? POLLOUT : 0));
    }
    PollUntil(entries, 2, deadline);
    if (entries[1].revents != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &count, sizeof count);
    }
    if ((entries[0].revents & POLLOUT) != 0) {
      MutexLock send(send_mutex_);
      Flush();
    }
    if ((entries[0].revents & ~POLLOUT) != 0) {
      MutexLock receive(receive_mutex_);
      ReadAvailable();
    }
  }
}

void TcpLink::StopPolling() {
  {
    MutexLock wait(wait_mutex_);
    is_polling_ = false;
    if (waiters_ > 0) wait_condition_.NotifyAll();
  }
  UpdateInterest();
}

// A poller sleeps on the socket, so it also needs a call when another thread changes what it waits
// for.
void TcpLink::NotifyWaiters() {
  MutexLock wait(wait_mutex_);
  if (waiters_ > 0) wait_condition_.NotifyAll();
  if (!is_polling_ || poller_ == std::this_thread::get_id()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

// While a thread polls, the I/O thread must leave the socket alone, or both would wake up for
// every arrival.
void TcpLink::UpdateInterest() {
  MutexLock wait(wait_mutex_);
  if (watched_fd_ < 0) return;
  uint32_t events = 0;
  if (!is_polling_) {
    if (!is_paused_.load()) events |= EPOLLIN;
    if (is_write_blocked_.load()) events |= EPOLLOUT;
  } else if (poller_ != std::this_thread::get_id() && is_write_blocked_.load()) {
    events |= EPOLLOUT;  // the poller may sleep without having seen this
  }
  if (events == watched_events_) return;
  watched_events_ = events;
  loop_.Modify(watched_fd_, *this, events);
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

}  // namespace rabit

#include "base/poller.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/socket.h"

namespace rabit {

Result<Poller> Poller::Open() {
  Poller poller;
  poller.epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  poller.wake_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!poller.epoll_.is_open() || !poller.wake_.is_open()) {
    return ResourceExhausted("cannot make an epoll or eventfd descriptor: " + ErrnoText(errno) +
                             "; raise the limit of open files (ulimit -n)");
  }
  // The thread that waits sleeps in one place only; whoever wants it writes to this descriptor.
  RABIT_RETURN_IF_ERROR(poller.Add(poller.wake_.get(), kWakeKey, true, false));
  return poller;
}

Status Poller::Add(int fd, uint64_t key, bool wants_read, bool wants_write) {
  return Control(EPOLL_CTL_ADD, fd, key, wants_read, wants_write);
}

Status Poller::Change(int fd, uint64_t key, bool wants_read, bool wants_write) {
  return Control(EPOLL_CTL_MOD, fd, key, wants_read, wants_write);
}

void Poller::Remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

Status Poller::Control(int operation, int fd, uint64_t key, bool wants_read, bool wants_write) {
  epoll_event event{};
  // Level-triggered: what a reader leaves in the socket makes the next Wait return again.
  event.events = (wants_read ? EPOLLIN | EPOLLRDHUP : 0u) | (wants_write ? EPOLLOUT : 0u);
  event.data.u64 = key;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) == 0) return {};
  return ResourceExhausted("cannot watch a descriptor: " + ErrnoText(errno) +
                           "; raise the limit of open files and of epoll watches");
}

std::span<const Poller::Event> Poller::Wait(Deadline deadline) {
  const int ready = ::epoll_wait(epoll_.get(), raw_.data(), static_cast<int>(raw_.size()),
                                 PollTimeoutMs(deadline));
  size_t count = 0;
  for (int i = 0; i < ready; ++i) {
    const epoll_event& event = raw_[static_cast<size_t>(i)];
    if (event.data.u64 == kWakeKey) {
      uint64_t wakes = 0;
      // One read takes all wakes so far; without it every later Wait would return at once.
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &wakes, sizeof wakes);
      continue;
    }
    events_[count++] = {event.data.u64,
                        // An error or an end counts as readable: the read that follows says what it
                        // is.
                        (event.events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0,
                        (event.events & EPOLLOUT) != 0};
  }
  return std::span(events_).first(count);
}

void Poller::Wake() {
  const uint64_t one = 1;
  // Fails only if the counter is full, and then the wait returns anyway.
  [[maybe_unused]] const ssize_t put = ::write(wake_.get(), &one, sizeof one);
}

}  // namespace rabit

#include "transport/tcp/tcp_stream.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/socket.h"

namespace rabit {
namespace {

constexpr uint32_t kMemberEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
// The I/O thread takes over when a stream has not been used for this time.
constexpr std::chrono::milliseconds kHandover{2};
constexpr int kEventsMax = 16;

Status CannotWatch() {
  return ResourceExhausted("cannot watch a connection: " + ErrnoText(errno) +
                           "; raise the limit of open files and fs.epoll.max_user_watches");
}

}  // namespace

Result<std::unique_ptr<TcpStream>> TcpStream::Open(std::chrono::microseconds spin_max) {
  std::unique_ptr<TcpStream> stream(new TcpStream(spin_max));
  stream->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  stream->wake_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (!stream->epoll_.is_open() || !stream->wake_.is_open() ||
      ::epoll_ctl(stream->epoll_.get(), EPOLL_CTL_ADD, stream->wake_.get(), &event) != 0) {
    return CannotWatch();
  }
  return stream;
}

Status TcpStream::Attach(IoLoop& loop) {
  MutexLock lock(mutex_);
  loop_ = &loop;
  return loop.Add(epoll_.get(), *this, EPOLLIN | EPOLLONESHOT);
}

Status TcpStream::Add(int fd, Member& member) {
  epoll_event event{};
  event.events = kMemberEvents;
  event.data.ptr = &member;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? Status() : CannotWatch();
}

void TcpStream::Remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

// A change makes the kernel look at the socket anew.
void TcpStream::Revisit(int fd, Member& member) {
  epoll_event event{};
  event.events = kMemberEvents;
  event.data.ptr = &member;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void TcpStream::Wait(const std::atomic<bool>& is_done, Member& nearest, Deadline deadline) {
  while (!is_done.load(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() >= deadline) return;
    if (!BecomePoller(is_done, deadline)) continue;
    Poll(is_done, nearest, deadline);
    StopPolling();
  }
}

// False if it is done, or at the deadline.
bool TcpStream::BecomePoller(const std::atomic<bool>& is_done, Deadline deadline) {
  MutexLock lock(mutex_);
  while (is_polling_) {
    if (is_done.load(std::memory_order_acquire)) return false;
    ++waiters_;
    const bool is_in_time = condition_.WaitUntil(mutex_, deadline);
    --waiters_;
    if (!is_in_time) return false;
  }
  is_polling_ = true;
  poller_ = std::this_thread::get_id();
  return true;
}

void TcpStream::Poll(const std::atomic<bool>& is_done, Member& nearest, Deadline deadline) {
  const Deadline spin_end = std::min(deadline, After(spin_max_));
  do {
    nearest.ReadNow();
  } while (!is_done.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < spin_end);
  while (!is_done.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < deadline) {
    ServeReady(PollTimeoutMs(deadline));
  }
}

void TcpStream::StopPolling() {
  Touch();
  MutexLock lock(mutex_);
  is_polling_ = false;
  if (waiters_ > 0) condition_.NotifyAll();
}

void TcpStream::ServeReady(int timeout_ms) {
  std::array<epoll_event, kEventsMax> events;
  const int ready = ::epoll_wait(epoll_.get(), events.data(), kEventsMax, timeout_ms);
  for (int i = 0; i < ready; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.ptr != nullptr) {
      static_cast<Member*>(event.data.ptr)->Serve(event.events);
      continue;
    }
    uint64_t count;
    [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &count, sizeof count);
  }
}

// A poller sleeps on the sockets, so it also needs a call when another thread changes what it waits
// for.
void TcpStream::Notify() {
  MutexLock lock(mutex_);
  if (waiters_ > 0) condition_.NotifyAll();
  if (!is_polling_ || poller_ == std::this_thread::get_id()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

// The loop looks away until OnTick has served the stream.
void TcpStream::OnReady(uint32_t) { is_armed_ = false; }

Deadline TcpStream::OnTick(Deadline now) {
  if (is_armed_) return now + std::chrono::hours(1);
  IoLoop* loop;
  {
    MutexLock lock(mutex_);
    if (is_polling_) return now + kHandover;
    const Deadline handover = touched_.load(std::memory_order_relaxed) + kHandover;
    if (now < handover) return handover;
    loop = loop_;
  }
  ServeReady(0);
  is_armed_ = true;
  loop->Modify(epoll_.get(), *this, EPOLLIN | EPOLLONESHOT);
  return now + std::chrono::hours(1);
}

}  // namespace rabit

#include "transport/tcp/tcp_stream.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>

#include "base/socket.h"
#include "base/spin_wait.h"

namespace rabit {
namespace {

constexpr uint32_t kMemberEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
// The I/O thread takes over when a stream has not been used for this time.
constexpr std::chrono::milliseconds kHandover{2};
constexpr int kEventsMax = 16;
constexpr std::chrono::milliseconds kShortSleep{2};
// While a thread spins, it looks at every connection once in so many looks at the nearest.
constexpr int kLooksPerRound = 8;

Status CannotWatch() {
  return ResourceExhausted("cannot watch a connection: " + ErrnoText(errno) +
                           "; raise the limit of open files and fs.epoll.max_user_watches");
}

}  // namespace

Result<std::unique_ptr<TcpStream>> TcpStream::Open(const SpinTimes& spin) {
  std::unique_ptr<TcpStream> stream(new TcpStream(spin));
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

void TcpStream::Detach() {
  MutexLock lock(mutex_);
  if (loop_ != nullptr) loop_->Remove(epoll_.get());
  loop_ = nullptr;
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

void TcpStream::Wait(const std::atomic<bool>& is_done, Member& nearest, bool may_spin,
                     Deadline deadline) {
  while (!is_done.load(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() >= deadline) return;
    // One thread reads for all that wait; the others sleep on the condition, or several would wake
    // for each byte.
    if (!BecomePoller(is_done, deadline)) continue;
    Poll(is_done, nearest, may_spin, deadline);
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
  // Notify is often called by the poller itself, which needs no wake.
  poller_ = std::this_thread::get_id();
  return true;
}

void TcpStream::Poll(const std::atomic<bool>& is_done, Member& nearest, bool may_spin,
                     Deadline deadline) {
  SpinWait spin(spins_.current());
  bool has_moved = nearest.ReadNow();
  for (int look = 1;; ++look) {
    const bool is_over = is_done.load(std::memory_order_acquire);
    if (is_over || has_moved) spin.OnFound();
    if (is_over) return;
    const Deadline now = std::chrono::steady_clock::now();
    if (now >= deadline) return;
    if (may_spin && spin.MaySpin(now)) {
      if (!has_moved) spin.Rest();
      // Reading costs one system call, asking epoll first another one.  But where data flows, it
      // mostly flows both ways, and writes must go on as well.
      const bool looks_at_all = has_moved || look % kLooksPerRound == 0;
      has_moved = looks_at_all ? ServeReady(0) : nearest.ReadNow();
      continue;
    }
    has_moved = Sleep(is_done, deadline);
  }
}

bool TcpStream::Sleep(const std::atomic<bool>& is_done, Deadline deadline) {
  // This store and the look at is_done stand against the store of is_done and the look at
  // is_sleeping_ in Notify: one of the two threads sees the other.
  is_sleeping_.store(true, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // What is done before this is seen here; what is done after it ends the sleep through Notify.
  const bool has_moved = !is_done.load(std::memory_order_acquire) && SleepAndServe(deadline);
  is_sleeping_.store(false, std::memory_order_relaxed);
  return has_moved;
}

// Timeouts of epoll are milliseconds; a short sleep is to end in time.
bool TcpStream::SleepAndServe(Deadline deadline) {
  const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
  if (left > kShortSleep) return ServeReady(PollTimeoutMs(deadline));
  if (left <= left.zero()) return ServeReady(0);
  pollfd entry{epoll_.get(), POLLIN, 0};
  const timespec timeout{0, static_cast<long>(left.count())};
  return ::ppoll(&entry, 1, &timeout, nullptr) > 0 && ServeReady(0);
}

void TcpStream::StopPolling() {
  // The I/O thread leaves the stream alone for some more time: a caller that waited once often
  // waits again soon.
  Touch();
  MutexLock lock(mutex_);
  is_polling_ = false;
  if (waiters_ > 0) condition_.NotifyAll();
}

bool TcpStream::ServeReady(int timeout_ms) {
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
  return ready > 0;
}

// A poller sleeps on the sockets, so it also needs a call when another thread changes what it waits
// for.
void TcpStream::Notify() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  {
    MutexLock lock(mutex_);
    if (waiters_ > 0) condition_.NotifyAll();
    if (!is_polling_ || poller_ == std::this_thread::get_id() || !is_sleeping_.load()) return;
  }
  // Without the mutex, which the poller takes as soon as it is awake.
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
    if (loop_ == nullptr) return now + std::chrono::hours(1);
    if (is_polling_) return now + kHandover;
    const Deadline handover = touched_.load(std::memory_order_relaxed) + kHandover;
    if (now < handover) return handover;
    // ServeReady runs without the mutex: it calls members, which notify.
    loop = loop_;
  }
  ServeReady(0);
  is_armed_ = true;
  loop->Modify(epoll_.get(), *this, EPOLLIN | EPOLLONESHOT);
  return now + std::chrono::hours(1);
}

}  // namespace rabit

#include "transport/tcp/io_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <string>

#include "base/socket.h"

namespace rabit {

Result<std::unique_ptr<IoLoop>> IoLoop::Start(std::function<Deadline()> on_tick) {
  std::unique_ptr<IoLoop> loop(new IoLoop(std::move(on_tick)));
  loop->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  loop->wake_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (!loop->epoll_.is_open() || !loop->wake_.is_open() ||
      ::epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0) {
    return ResourceExhausted("cannot make the I/O loop: " + ErrnoText(errno) +
                             "; raise the limit of open files (ulimit -n)");
  }
  loop->thread_ = std::thread([raw = loop.get()] { raw->Run(); });
  return loop;
}

Status IoLoop::Add(int fd, Client& client, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &client;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status();
  return ResourceExhausted("cannot watch a connection: " + ErrnoText(errno) +
                           "; raise fs.epoll.max_user_watches");
}

void IoLoop::Modify(int fd, Client& client, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &client;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void IoLoop::Remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void IoLoop::Wake() {
  const uint64_t one = 1;
  // A full counter wakes as well, so the result does not matter.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void IoLoop::Stop() {
  if (!thread_.joinable()) return;
  wants_stop_.store(true);
  Wake();
  thread_.join();
}

void IoLoop::Run() {
  std::array<epoll_event, 64> events;
  while (!wants_stop_.load()) {
    const Deadline next = on_tick_();
    const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   PollTimeoutMs(next));
    for (int i = 0; i < ready && !wants_stop_.load(); ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.ptr != nullptr) {
        static_cast<Client*>(event.data.ptr)->OnReady(event.events);
        continue;
      }
      uint64_t count;
      [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &count, sizeof count);
    }
  }
}

}  // namespace rabit

// TcpStream: the connections of one stream, and the threads that wait for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"
#include "base/spin_times.h"
#include "base/unique_fd.h"
#include "transport/tcp/io_loop.h"

namespace rabit {

// The first thread that waits serves every connection of the stream; others wait for it.  While one
// does, and for a moment after each Touch, the I/O thread leaves the stream alone: a lane posts and
// waits again and again, and handing over each time would cost system calls and thread switches.
// Thread-safe.
class TcpStream final : public IoLoop::Client {
 public:
  class Member {
   public:
    virtual ~Member() = default;
    // Edge-triggered: reads and writes until the socket would block, or calls Revisit.  `events`
    // are epoll's.  May be called once more after Remove.
    virtual void Serve(uint32_t events) = 0;
    // Reads what is there; whether anything was.
    virtual bool ReadNow() = 0;
  };

  static Result<std::unique_ptr<TcpStream>> Open(const SpinTimes& spin);
  // From now on the loop serves the stream while nobody waits.  The loop calls OnTick on its
  // thread after every wait.
  Status Attach(IoLoop& loop);
  // From now on whoever waits serves it, and nobody else.
  void Detach();

  Status Add(int fd, Member& member);
  void Remove(int fd);
  // The member has left something unread.
  void Revisit(int fd, Member& member);

  // A thread uses the stream and will wait for it soon.
  void Touch() { touched_.store(std::chrono::steady_clock::now(), std::memory_order_relaxed); }
  // `call_bytes`: of the call that is waited for; SIZE_MAX: not known.
  void SetWaiter(Waiter waiter, size_t call_bytes = SIZE_MAX) {
    spins_.SetWaiter(waiter);
    call_bytes_.store(call_bytes, std::memory_order_relaxed);
  }
  size_t call_bytes() const { return call_bytes_.load(std::memory_order_relaxed); }
  // Returns when `is_done` or at the deadline.  `nearest` is served first.  `may_spin`: before it
  // sleeps.
  void Wait(const std::atomic<bool>& is_done, Member& nearest, bool may_spin, Deadline deadline);
  // Something that a thread may wait for is done.
  void Notify();
  // Serves what is ready, without waiting; whether anything was.
  bool ServeNow() { return ServeReady(0); }

  void OnReady(uint32_t events) override;
  // When it must be called again.
  Deadline OnTick(Deadline now);

 private:
  explicit TcpStream(const SpinTimes& spin) : spins_(spin.Budgets()) {}

  bool BecomePoller(const std::atomic<bool>& is_done, Deadline deadline);
  void Poll(const std::atomic<bool>& is_done, Member& nearest, bool may_spin, Deadline deadline);
  void StopPolling();
  bool ServeReady(int timeout_ms);  // whether there was anything
  bool Sleep(const std::atomic<bool>& is_done, Deadline deadline);
  bool SleepAndServe(Deadline deadline);

  SpinBudgets spins_;
  std::atomic<size_t> call_bytes_{SIZE_MAX};
  UniqueFd epoll_;
  UniqueFd wake_;

  std::atomic<Deadline> touched_{};
  std::atomic<bool> is_sleeping_{false};  // the poller

  // I/O thread.
  bool is_armed_ = true;  // the loop wakes up for this stream

  Mutex mutex_;
  CondVar condition_;
  IoLoop* loop_ RABIT_GUARDED_BY(mutex_) = nullptr;
  bool is_polling_ RABIT_GUARDED_BY(mutex_) = false;
  std::thread::id poller_ RABIT_GUARDED_BY(mutex_);
  int waiters_ RABIT_GUARDED_BY(mutex_) = 0;
};

}  // namespace rabit

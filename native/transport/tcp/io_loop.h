// IoLoop: the I/O thread of a TCP transport.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/bytes.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace rabit {

// Waits for sockets and calls their clients.  Thread-safe, except Stop.
class IoLoop {
 public:
  class Client {
   public:
    virtual ~Client() = default;
    // On the loop's thread; `events` are epoll's.  May be called once more after Remove, so a
    // client lives longer than the loop.
    virtual void OnReady(uint32_t events) = 0;
  };

  // `on_tick` runs on the loop's thread after every wait and says when it wants to run next.
  static Result<std::unique_ptr<IoLoop>> Start(std::function<Deadline()> on_tick);
  ~IoLoop() { Stop(); }

  Status Add(int fd, Client& client, uint32_t events);
  void Modify(int fd, Client& client, uint32_t events);
  void Remove(int fd);
  void Wake();
  // Returns when no client is called any more.
  void Stop();

 private:
  explicit IoLoop(std::function<Deadline()> on_tick) : on_tick_(std::move(on_tick)) {}
  void Run();

  const std::function<Deadline()> on_tick_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::atomic<bool> wants_stop_{false};
  std::thread thread_;
};

}  // namespace rabit

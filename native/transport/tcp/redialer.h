// Redialer: the thread that connects broken links again.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "transport/tcp/tcp_link.h"

namespace rabit {

// Dials in turn, a short while each, so that a dead peer does not delay a living one.  Thread-safe.
class Redialer {
 public:
  using Dialer = std::function<Result<UniqueFd>(const TcpLink& link, Deadline deadline)>;

  explicit Redialer(Dialer dial) : dial_(std::move(dial)) {}
  ~Redialer() { Stop(); }

  // The link is connected, or fails at the end of its outage.  Never blocks.
  void Request(TcpLink& link);
  // Returns when no link is touched any more.
  void Stop();

 private:
  void Run();

  const Dialer dial_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<TcpLink*> waiting_;
  bool wants_stop_ = false;
  std::thread thread_;  // started by the first request
};

}  // namespace rabit

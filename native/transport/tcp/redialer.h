// Redialer: the thread that connects broken links again.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "transport/tcp/tcp_link.h"

namespace rabit {

// Dials in turn, a short while each, so that a dead peer does not delay a living one; longer where
// that was too short, since a peer may be far away.  The links with lower ranks are connected by
// this rank.  Those with higher ranks are connected by the peer, which may not have seen the
// connection break: dialling it makes it look.  That comes after a while, since it costs a
// connection that the peer is making; whether its process has ended is found before, by a knock at
// its port.  Thread-safe.
class Redialer {
 public:
  // kPeerLost: the peer's port refuses connections; kTimedOut: worth another try.
  using Dialer = std::function<Result<UniqueFd>(const TcpLink& link, Deadline deadline)>;
  // Connects and says nothing: whether the peer's port refuses connections.
  using Knocker = std::function<bool(const TcpLink& link, Deadline deadline)>;
  // Whether the peer is on this host, where no firewall refuses for it: one refusal is its end.
  using IsHere = std::function<bool(const TcpLink& link)>;

  Redialer(int rank, Dialer dial, Knocker knock, IsHere is_here)
      : rank_(rank),
        dial_(std::move(dial)),
        knock_(std::move(knock)),
        is_here_(std::move(is_here)) {}
  ~Redialer() { Stop(); }

  // The link is connected, or fails at the end of its outage.  Never blocks.
  void Request(TcpLink& link);
  // Returns when no link is touched any more.
  void Stop();

 private:
  static constexpr std::chrono::milliseconds kFirstSlice{250};

  struct Broken {
    TcpLink* link = nullptr;
    Deadline due{};
    Deadline ask_at{};  // when the peer that has to dial is asked to; before, knocks
    bool was_knocked = false;
    bool was_asked = false;
    int refusals = 0;  // in a row
    std::chrono::milliseconds slice = kFirstSlice;  // what a try may take
  };

  void Run();
  // Of those that are due now, a link whose peer has let the fewest tries pass without an answer: a
  // try of one that answers takes no time, and does not wait for those of a host that has vanished.
  std::deque<Broken>::iterator Next(Deadline now) RABIT_REQUIRES(mutex_);
  // Whether the link needs another try, at `broken.due`.
  bool Try(Broken& broken);
  bool TryKnocking(Broken& broken);
  // The peer's port has refused once more: whether that may pass.
  bool MayPass(Broken& broken);

  const int rank_;
  const Dialer dial_;
  const Knocker knock_;
  const IsHere is_here_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Broken> waiting_ RABIT_GUARDED_BY(mutex_);
  std::map<int, int> unanswered_ RABIT_GUARDED_BY(mutex_);  // by peer: tries since its last answer
  bool wants_stop_ RABIT_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // started by the first request
};

}  // namespace rabit

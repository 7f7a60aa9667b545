// TcpLinks: the links of one purpose with all peers, and whatever brings them back.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "transport/connect.h"
#include "transport/tcp/heartbeat.h"
#include "transport/tcp/redialer.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp/tcp_options.h"

namespace rabit {

// The higher rank of a pair dials the listener of the lower one.  When a connection breaks, the
// higher rank dials again; the lower one, should it not hear of that, dials too and so asks for a
// new connection.  A peer whose port refuses connections has ended, and is lost at once.
// Thread-safe.
class TcpLinks final : public TcpLinkHost {
 public:
  struct Plan {
    std::string purpose;                     // of the greeting
    std::string what;                        // for messages: "TCP"
    std::vector<int> peers;                  // ascending
    std::vector<TcpStream*> stream_of_link;  // for each link of a peer; outlive the links
    // Something may have changed: a message, a loss.  Any thread, with a link's locks held: returns
    // at once and never calls the links.
    std::function<void()> on_news;
    std::function<void()> wake_ticker;  // Tick must run; the same rules
  };

  TcpLinks(const ConnectContext& context, const TcpOptions& options, Plan plan);
  ~TcpLinks() override;

  // Returns when every link works.
  Status Connect(const ConnectContext& context);
  // The links with one peer; empty if it is none.
  std::span<const std::unique_ptr<TcpLink>> With(int peer) const {
    return peer >= 0 && peer < size_ ? std::span(links_[static_cast<size_t>(peer)])
                                     : std::span<const std::unique_ptr<TcpLink>>();
  }
  // Beats, times silence, outages and stalls, and lets a peer that one link has lost be lost to all.
  // One thread; says when it wants to run again.
  Deadline Tick(Deadline now);
  // Fails all links with `why`.
  void Abort(const Status& why);
  // No connection is made any more.
  void StopConnecting();
  // Ends every link; what outlives them goes to the keeper.  After StopConnecting.
  void Retire();

  TransportCounters counters() const;

 private:
  void OnBroken(int peer, int link) override;
  void OnFailed(int peer, const Status& why) override;
  void OnConnected() override;
  void OnMessage() override;

  Greeting GreetingFor(int index) const {
    return {plan_.purpose, epoch_, members_.Of(rank_), index};
  }
  // Where a rank is on the interface that the link goes to next.  The redialer's thread.
  std::string_view AddressOf(const TcpLink& link, int rank) const;
  void AttachKept();
  Status DialAllOf(std::span<TcpLink* const> links, const ConnectContext& context);
  void Accept(AuthenticatedPeer peer);
  Status WaitUntilReady(const ConnectContext& context);
  Status Missing() const;
  bool IsReady(int peer) const;
  Deadline Beat(Deadline now);

  const int rank_;
  const int size_;
  const uint64_t epoch_;
  const Members members_;
  LinkKeeper* const keeper_;  // null: connections end with their links
  const Secret secret_;
  Listener& listener_;
  const TcpOptions options_;
  const Plan plan_;
  TcpCounters counters_;
  std::vector<std::string> addresses_;  // by rank, as the context has them; fixed before a link can break
  std::vector<std::vector<std::unique_ptr<TcpLink>>> links_;  // by peer; empty: not a peer
  std::map<const TcpLink*, int> skipped_;  // of the redialer: interfaces that did not answer
  bool is_connecting_ = false;

  Mutex mutex_;  // taken with a link's locks held
  CondVar connected_;
  std::atomic<size_t> hellos_{0};  // one that waits for all links is not woken for each
  std::set<TcpLink*> broken_;
  std::vector<std::pair<int, Status>> failures_;  // peers whose other links must fail too
  bool is_aborted_ = false;
  Deadline next_check_{};  // of progress; Tick's own
  Heartbeat heartbeat_;    // Tick's own

  Redialer redialer_;
};

}  // namespace rabit

#include "transport/tcp/tcp_channel.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <thread>
#include <unordered_map>

#include "base/mutex.h"
#include "base/poller.h"
#include "base/socket.h"
#include "base/spin_times.h"
#include "transport/tcp/channel_peer.h"

namespace rabit {
namespace {

constexpr int kBeatsPerTimeout = 8;
// Up to this many connections, reading each costs less than asking epoll first.
constexpr size_t kDirectPeersMax = 2;
constexpr std::chrono::seconds kGoodbyeTime{1};

using Clock = std::chrono::steady_clock;

// Beats for every peer from a thread of its own, so that a rank whose engine thread is busy counts
// as alive, and notices when this process itself was held up: then silence proves nothing.
class Heart {
 public:
  Heart(std::chrono::milliseconds timeout, std::vector<std::unique_ptr<ChannelPeer>>& peers,
        Poller& poller)
      : timeout_(timeout), interval_(timeout / kBeatsPerTimeout), peers_(peers), poller_(poller) {}
  ~Heart() {
    {
      MutexLock lock(mutex_);
      is_stopping_ = true;
      stop_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  void Start() {
    last_beat_.store(Clock::now());
    thread_ = std::thread([this] { Run(); });
  }

  // Whether this process has run undisturbed for long enough to accuse another one of silence.
  bool IsSteady(Deadline now) const {
    return now - last_beat_.load() <= 2 * interval_ && now >= unsteady_until_.load();
  }

 private:
  void Run() {
    MutexLock lock(mutex_);
    while (!is_stopping_) {
      const Deadline due = last_beat_.load() + interval_;
      if (stop_.WaitUntil(mutex_, due) || Clock::now() < due) continue;
      const Deadline now = Clock::now();
      if (now > due + interval_) unsteady_until_.store(now + timeout_);
      last_beat_.store(now);
      for (const auto& peer : peers_) peer->SendBeat(poller_);
    }
  }

  const std::chrono::nanoseconds timeout_;
  const std::chrono::nanoseconds interval_;
  std::vector<std::unique_ptr<ChannelPeer>>& peers_;
  Poller& poller_;
  std::atomic<Deadline> last_beat_{};
  std::atomic<Deadline> unsteady_until_{};
  Mutex mutex_;
  CondVar stop_;
  bool is_stopping_ RABIT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class TcpChannel final : public Channel {
 public:
  TcpChannel(int rank, int size, std::vector<std::unique_ptr<ChannelPeer>> peers, Poller poller,
             const ChannelOptions& options)
      : rank_(rank),
        size_(size),
        timeout_(options.heartbeat_timeout),
        poller_(std::move(poller)),
        peers_(std::move(peers)),
        spins_(options.spin.Budgets()) {
    for (const auto& peer : peers_) by_rank_[peer->rank()] = peer.get();
  }

  ~TcpChannel() override {
    heart_.reset();
    const Deadline deadline = After(kGoodbyeTime);
    for (const auto& peer : peers_) peer->Close(poller_, deadline);
  }

  Status Start() {
    for (const auto& peer : peers_) RABIT_RETURN_IF_ERROR(peer->Watch(poller_));
    if (timeout_.count() == 0 || peers_.empty()) return {};
    heart_ = std::make_unique<Heart>(timeout_, peers_, poller_);
    heart_->Start();
    return {};
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status Send(int peer, ConstBytes message) override;
  Result<std::optional<ChannelMessage>> Receive(Deadline deadline) override;

  void SetWaiter(Waiter waiter) override { spins_.SetWaiter(waiter); }

  void Wake() override {
    is_woken_.store(true);
    if (is_sleeping_.load()) poller_.Wake();
  }

 private:
  // One look at every connection without waiting.
  void Look();
  void Sleep(Deadline deadline);
  void Serve(std::span<const Poller::Event> events);
  void LoseTheSilent(Deadline now);
  Deadline NextSilence() const;
  bool IsOpen(const ChannelPeer& peer) const { return peer.state() == ChannelPeer::State::kOpen; }

  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  Poller poller_;
  std::vector<std::unique_ptr<ChannelPeer>> peers_;
  std::unordered_map<int, ChannelPeer*> by_rank_;
  std::unique_ptr<Heart> heart_;
  std::deque<ChannelEvent> events_;
  SpinBudgets spins_;
  std::atomic<bool> is_woken_{false};
  std::atomic<bool> is_sleeping_{false};
};

Status TcpChannel::Send(int peer, ConstBytes message) {
  const auto found = by_rank_.find(peer);
  if (found == by_rank_.end()) {
    return InvalidArgument("rank " + std::to_string(rank_) + " has no channel to rank " +
                           std::to_string(peer) + ": the two are no neighbours in the tree");
  }
  if (message.size() > kChannelMessageBytesMax) {
    return InvalidArgument("a control message to rank " + std::to_string(peer) + " has " +
                           std::to_string(message.size()) + " bytes; at most " +
                           std::to_string(kChannelMessageBytesMax) + " are allowed");
  }
  return found->second->Send(poller_, message, events_);
}

Result<std::optional<ChannelMessage>> TcpChannel::Receive(Deadline deadline) {
  if (events_.empty()) {
    SpinBudget& spin = spins_.current();
    bool has_spun = false;
    bool has_slept = false;
    Deadline spin_end{};
    for (;;) {
      Look();
      const bool is_woken = events_.empty() && is_woken_.exchange(false);
      if (has_spun && !has_slept && (is_woken || !events_.empty())) {
        EndInTime(spin, spin_end, spin.yields());
      }
      if (is_woken) return std::optional<ChannelMessage>();
      if (!events_.empty()) break;
      const Deadline now = Clock::now();
      LoseTheSilent(now);
      if (!events_.empty()) break;
      if (now >= deadline) return std::optional<ChannelMessage>();
      if (!has_spun) spin_end = now + spin.Begin();
      has_spun = true;
      if (now < spin_end) {
        spin.Rest();
        continue;
      }
      if (!has_slept) spin.EndedInSleep();
      has_slept = true;
      Sleep(deadline);
      if (!events_.empty()) break;
    }
  }
  ChannelEvent event = std::move(events_.front());
  events_.pop_front();
  if (!event.loss.ok()) return event.loss;
  return std::optional(std::move(event.message));
}

void TcpChannel::Look() {
  if (peers_.size() > kDirectPeersMax) return Serve(poller_.Wait(Deadline{}));
  for (const auto& peer : peers_) {
    if (peer->has_output()) peer->Flush(poller_);
    peer->Read(poller_, events_);
  }
}

void TcpChannel::Sleep(Deadline deadline) {
  is_sleeping_.store(true);
  // A Wake before this is seen here, one after it ends the wait through the poller.
  if (!is_woken_.load()) Serve(poller_.Wait(std::min(deadline, NextSilence())));
  is_sleeping_.store(false);
}

void TcpChannel::Serve(std::span<const Poller::Event> events) {
  for (const Poller::Event& event : events) {
    ChannelPeer& peer = *by_rank_.at(static_cast<int>(event.key));
    if (event.is_writable) peer.Flush(poller_);
    if (event.is_readable) peer.Read(poller_, events_);
  }
}

Deadline TcpChannel::NextSilence() const {
  Deadline next = After(std::chrono::hours(1));
  if (heart_ == nullptr) return next;
  for (const auto& peer : peers_) {
    if (IsOpen(*peer)) next = std::min(next, peer->last_heard() + timeout_);
  }
  return next;
}

// Called right after Look, so what a peer has sent is known.
void TcpChannel::LoseTheSilent(Deadline now) {
  if (heart_ == nullptr) return;
  for (const auto& peer : peers_) {
    if (!IsOpen(*peer) || now - peer->last_heard() <= timeout_) continue;
    if (!heart_->IsSteady(now)) {
      for (const auto& other : peers_) other->set_last_heard(now);
      return;
    }
    // With many peers, epoll reports 64 at a time: this one's turn may not have come.
    if (peer->Read(poller_, events_)) continue;
    char text[200];
    std::snprintf(text, sizeof text,
                  "has been silent for %.1f s (heartbeat timeout %.1f s): it hangs, is stopped, or "
                  "cannot be reached",
                  std::chrono::duration<double>(now - peer->last_heard()).count(),
                  std::chrono::duration<double>(timeout_).count());
    peer->Lose(poller_, text, events_);
  }
}

// Ranks introduce themselves to their parent when they have heard all their children, and rank 0
// answers when it has heard all of its own, so that nobody starts before everybody has come.
Status Introduce(int rank, const std::vector<std::unique_ptr<ChannelPeer>>& peers,
                 Deadline deadline) {
  const struct {
    bool is_to_parent;
    bool is_sending;
  } steps[] = {{false, false}, {true, true}, {true, false}, {false, true}};
  for (const auto& step : steps) {
    for (const auto& peer : peers) {
      if ((peer->rank() < rank) != step.is_to_parent) continue;
      const Status status =
          step.is_sending ? peer->SendIntroduction(deadline) : peer->ReadIntroduction(deadline);
      if (status.ok()) continue;
      const Code code = status.code() == Code::kInternal ? Code::kPeerLost : status.code();
      return Status(code, "rank " + std::to_string(rank) + " has no control channel to " +
                              peer->ToString() + ": " + status.message())
          .WithCulprit(peer->rank());
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Channel>> MakeTcpChannel(int rank, int size,
                                                std::vector<ChannelConnection> connections,
                                                const ChannelOptions& options, Deadline deadline) {
  std::sort(connections.begin(), connections.end(),
            [](const ChannelConnection& a, const ChannelConnection& b) { return a.rank < b.rank; });
  std::vector<std::unique_ptr<ChannelPeer>> peers;
  for (ChannelConnection& connection : connections) {
    RABIT_RETURN_IF_ERROR(SetNoDelay(connection.fd.get()));
    AvoidPacingWithinHost(connection.fd.get());
    if (options.heartbeat_timeout.count() > 0) {
      RABIT_RETURN_IF_ERROR(SetPeerTimeout(connection.fd.get(), 2 * options.heartbeat_timeout));
    }
    peers.push_back(std::make_unique<ChannelPeer>(connection.rank, std::move(connection.fd)));
  }
  RABIT_RETURN_IF_ERROR(Introduce(rank, peers, deadline));
  RABIT_ASSIGN_OR_RETURN(Poller poller, Poller::Open());
  auto channel =
      std::make_unique<TcpChannel>(rank, size, std::move(peers), std::move(poller), options);
  RABIT_RETURN_IF_ERROR(channel->Start());
  return std::unique_ptr<Channel>(std::move(channel));
}

}  // namespace rabit

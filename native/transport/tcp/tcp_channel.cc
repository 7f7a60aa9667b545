#include "transport/tcp/tcp_channel.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transport/tcp/introduction.h"
#include "transport/tcp/io_loop.h"
#include "transport/tcp/tcp_links.h"
#include "transport/tcp/tcp_stream.h"

namespace rabit {
namespace {

constexpr std::string_view kPurpose = "channel";
constexpr Tag kMessages = 0;
// Up to this many connections, reading each costs less than asking epoll first.
constexpr size_t kDirectPeersMax = 2;
constexpr std::chrono::seconds kGoodbyeTime{1};
// A parent knows which of its children are missing, so it gives up before they do: a child that
// left first would be named instead.
constexpr std::chrono::seconds kAfterParent{2};

using Clock = std::chrono::steady_clock;

TcpOptions LinkOptions(const ChannelOptions& options) {
  TcpOptions tcp;
  tcp.copied_bytes_max = kChannelMessageBytesMax;
  tcp.payload_checks = PayloadChecks::kOn;  // a wrong agreement costs more than the checksum
  // Control messages come unasked, so the link keeps them until Take.
  tcp.keeps_messages = true;
  tcp.spin = options.spin;
  tcp.SetTimes(options.heartbeat_timeout, true);
  return tcp;
}

// The engine thread works with the links.  A second thread beats for every peer, so that a rank
// whose engine thread is busy counts as alive.
class TcpChannel final : public Channel, public LinkBorrower {
 public:
  explicit TcpChannel(const ConnectContext& context)
      : rank_(context.rank),
        size_(context.size),
        keeper_(context.keeper),
        looker_(*this) {
    if (keeper_ != nullptr) keeper_->Enter(*this);
  }
  ~TcpChannel() override;

  void GiveBack() override;

  Status Connect(const ConnectContext& context, const RankTree& tree,
                 const ChannelOptions& options);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status Send(int peer, ConstBytes message) override;
  Result<std::optional<ChannelMessage>> Receive(Deadline deadline) override;
  void SetWaiter(Waiter waiter) override { stream_->SetWaiter(waiter); }
  void Wake() override {
    is_woken_.store(true);
    has_news_.store(true);
    stream_->Notify();
  }
  TransportCounters counters() const override { return links_->counters(); }

 private:
  struct Peer {
    int rank = -1;
    TcpLink* link = nullptr;
    Introduction introduction;
    bool is_loss_told = false;
  };

  // What a spinning Receive looks at.
  class Looker final : public TcpStream::Member {
   public:
    explicit Looker(TcpChannel& channel) : channel_(channel) {}
    void Serve(uint32_t) override {}
    bool ReadNow() override { return channel_.Look(); }

   private:
    TcpChannel& channel_;
  };

  bool Look();
  std::optional<Result<std::optional<ChannelMessage>>> TakeEvent();
  Peer* Find(int rank);
  std::string TextOf(const Peer& peer) const;
  Status LossOf(const Peer& peer, const Status& why) const;
  Status Introduce(const RankTree& tree, const ConnectContext& context);
  Status ReadIntroduction(Peer& peer, const ConnectContext& context, Deadline deadline);
  Deadline Tick();

  const int rank_;
  const int size_;
  LinkKeeper* const keeper_;  // null: connections end with this
  Looker looker_;
  std::unique_ptr<TcpStream> stream_;
  std::unique_ptr<TcpLinks> links_;
  bool has_ended_ = false;
  std::vector<Peer> peers_;  // ascending
  size_t next_peer_ = 0;     // whose turn it is, so that no peer's messages crowd out another's
  std::atomic<bool> has_news_{false};
  std::atomic<bool> is_woken_{false};
  std::unique_ptr<IoLoop> loop_;
};

TcpChannel::~TcpChannel() {
  if (keeper_ != nullptr) keeper_->Leave(*this);
  GiveBack();
  links_.reset();  // before the stream
}

void TcpChannel::GiveBack() {
  if (links_ == nullptr || has_ended_) return;
  // The keeper may call before the destructor does, and the second call has nothing to do.
  has_ended_ = true;
  links_->StopConnecting();
  // From here on this thread alone touches the links.
  if (loop_ != nullptr) loop_->Stop();
  if (keeper_ == nullptr) {
    for (const Peer& peer : peers_) (void)peer.link->StartClose();
  }
  const Deadline deadline = After(kGoodbyeTime);
  const auto is_through = [](const Peer& peer) { return peer.link->HasSentAll(); };
  // Closing with unread input resets the connection and drops what is not sent yet.  Waiting for
  // the acknowledgement too would cost every job the time until its peers look.
  while (Look() || !std::all_of(peers_.begin(), peers_.end(), is_through)) {
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // no event tells of it
  }
  links_->Retire();
}

Status TcpChannel::Connect(const ConnectContext& context, const RankTree& tree,
                           const ChannelOptions& options) {
  RABIT_ASSIGN_OR_RETURN(stream_, TcpStream::Open(options.spin));
  TcpLinks::Plan plan{.purpose = std::string(kPurpose),
                      .what = "control",
                      .peers = tree.Neighbours(rank_),
                      .stream_of_link = {stream_.get()},
                      .on_news = [this] { has_news_.store(true); },
                      .wake_ticker = [this] { loop_->Wake(); }};
  std::sort(plan.peers.begin(), plan.peers.end());
  const std::vector<int> neighbours = plan.peers;
  links_ = std::make_unique<TcpLinks>(context, LinkOptions(options), std::move(plan));
  // peers_ is complete before the loop starts, whose thread never reads it.
  for (const int peer : neighbours) peers_.push_back({peer, links_->With(peer)[0].get(), {}, false});
  RABIT_ASSIGN_OR_RETURN(loop_, IoLoop::Start([this] { return Tick(); }));
  // Hellos must be answered while this thread dials.
  RABIT_RETURN_IF_ERROR(stream_->Attach(*loop_));
  RABIT_RETURN_IF_ERROR(links_->Connect(context));
  // The engine thread serves the stream itself from here on; two readers would take turns for
  // nothing.
  stream_->Detach();
  return Introduce(tree, context);
}

Status TcpChannel::Send(int rank, ConstBytes message) {
  Peer* const peer = Find(rank);
  if (peer == nullptr) {
    return InvalidArgument("rank " + std::to_string(rank_) + " has no channel to rank " +
                           std::to_string(rank) + ": the two are no neighbours in the tree");
  }
  if (message.size() > kChannelMessageBytesMax) {
    return InvalidArgument("a control message to rank " + std::to_string(rank) + " has " +
                           std::to_string(message.size()) + " bytes; at most " +
                           std::to_string(kChannelMessageBytesMax) + " are allowed");
  }
  const Status sent = peer->link->Post(kMessages, message, kChannelQueueBytesMax);
  // A full queue is an error of this message alone: the link lives.
  if (sent.ok() || sent.code() == Code::kResourceExhausted) return sent;
  if (peer->link->has_left()) {
    return Aborted(TextOf(*peer) + " has left the job: nothing can be sent to it");
  }
  return LossOf(*peer, sent);
}

Result<std::optional<ChannelMessage>> TcpChannel::Receive(Deadline deadline) {
  for (bool has_looked = false;;) {
    // Before the look: news that come during it set the flag again and end the wait below at once.
    has_news_.store(false);
    if (auto event = TakeEvent()) return std::move(*event);
    // A wake without a message: the engine has something of its own to do.
    if (is_woken_.exchange(false)) return std::optional<ChannelMessage>();
    if (Clock::now() < deadline) {
      stream_->Wait(has_news_, looker_, true, deadline);
      has_looked = true;
      continue;
    }
    if (has_looked || !Look()) return std::optional<ChannelMessage>();
    has_looked = true;
  }
}

// Messages first: what a peer said before its end is worth more than the news of its end.
std::optional<Result<std::optional<ChannelMessage>>> TcpChannel::TakeEvent() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    const size_t index = (next_peer_ + i) % peers_.size();
    Peer& peer = peers_[index];
    if (!peer.link->has_message()) continue;
    if (auto message = peer.link->Take(kMessages)) {
      next_peer_ = index + 1;
      return std::optional(ChannelMessage{peer.rank, *std::move(message)});
    }
  }
  for (Peer& peer : peers_) {
    if (peer.is_loss_told || !peer.link->has_failed() || peer.link->has_left()) continue;
    if (peer.link->has_message()) return TakeEvent();  // it came between the two looks
    // Once for each peer; the link stays failed.
    peer.is_loss_told = true;
    return Result<std::optional<ChannelMessage>>(LossOf(peer, peer.link->failure()));
  }
  return std::nullopt;
}

bool TcpChannel::Look() {
  if (peers_.size() > kDirectPeersMax) return stream_->ServeNow();
  bool has_read = false;
  for (const Peer& peer : peers_) has_read = peer.link->ReadNow() || has_read;
  return has_read;
}

TcpChannel::Peer* TcpChannel::Find(int rank) {
  const auto found = std::lower_bound(peers_.begin(), peers_.end(), rank,
                                      [](const Peer& peer, int wanted) { return peer.rank < wanted; });
  return found != peers_.end() && found->rank == rank ? &*found : nullptr;
}

std::string TcpChannel::TextOf(const Peer& peer) const {
  const std::string text = "rank " + std::to_string(peer.rank);
  if (peer.introduction.host.empty()) return text;
  return text + " (host " + peer.introduction.host + ", pid " +
         std::to_string(peer.introduction.pid) + ")";
}

Status TcpChannel::LossOf(const Peer& peer, const Status& why) const {
  return PeerLost(peer.rank, TextOf(peer) + " is lost: " + why.message());
}

// Ranks introduce themselves to their parent when they have heard all their children, and rank 0
// answers when it has heard all of its own, so that nobody starts before everybody has come.
Status TcpChannel::Introduce(const RankTree& tree, const ConnectContext& context) {
  const std::vector<std::byte> mine = Encode(Introduction::OfThisProcess());
  Peer* const parent = tree.parent(rank_) < 0 ? nullptr : Find(tree.parent(rank_));
  for (const int child : tree.children(rank_)) {
    RABIT_RETURN_IF_ERROR(ReadIntroduction(*Find(child), context, context.deadline));
  }
  if (parent != nullptr) {
    RABIT_RETURN_IF_ERROR(Send(parent->rank, mine));
    RABIT_RETURN_IF_ERROR(ReadIntroduction(*parent, context, context.deadline + kAfterParent));
  }
  for (const int child : tree.children(rank_)) RABIT_RETURN_IF_ERROR(Send(child, mine));
  return {};
}

Status TcpChannel::ReadIntroduction(Peer& peer, const ConnectContext& context,
                                    Deadline deadline) {
  for (;;) {
    has_news_.store(false);
    if (const auto message = peer.link->Take(kMessages)) {
      RABIT_ASSIGN_OR_RETURN(peer.introduction, DecodeIntroduction(*message));
      return {};
    }
    for (const Peer& each : peers_) {
      if (each.link->has_failed()) return LossOf(each, each.link->failure());
    }
    RABIT_RETURN_IF_ERROR(context.Look());
    if (Clock::now() >= deadline) {
      return TimedOut("rank " + std::to_string(rank_) + " waited for the introduction of rank " +
                      std::to_string(peer.rank) +
                      "; see whether that rank, and those below it in the tree, have started")
          .WithCulprit(peer.rank);
    }
    stream_->Wait(has_news_, looker_, true, std::min(deadline, After(kStartLookInterval)));
  }
}

// The loop's thread.
Deadline TcpChannel::Tick() {
  const Deadline now = Clock::now();
  return std::min(links_->Tick(now), stream_->OnTick(now));
}

}  // namespace

Result<std::unique_ptr<Channel>> ConnectTcpChannel(const ConnectContext& context,
                                                   const RankTree& tree,
                                                   const ChannelOptions& options) {
  auto channel = std::make_unique<TcpChannel>(context);
  RABIT_RETURN_IF_ERROR(channel->Connect(context, tree, options));
  return std::unique_ptr<Channel>(std::move(channel));
}

}  // namespace rabit

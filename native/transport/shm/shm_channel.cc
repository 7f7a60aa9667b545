#include "transport/shm/shm_channel.h"

#include <atomic>
#include <deque>
#include <string>
#include <utility>

#include "base/spin_times.h"
#include "base/spin_wait.h"
#include "transport/channel_options.h"
#include "transport/shm/control_ring.h"
#include "transport/shm/handshake.h"

namespace rabit {
namespace {

// The clock is read once in this many looks.
constexpr uint32_t kLooksPerReading = 16;
// The channel beneath is looked at once in this many messages, however busy the shared memory is.
constexpr uint32_t kMessagesPerLookBeneath = 64;

using Clock = std::chrono::steady_clock;

// What Receive returns next.
struct Event {
  ChannelMessage message;
  Status loss;
};

// One rank with which this one shares memory.
//
// A message for which the ring has no room takes a detour through the channel beneath, and so do
// those after it until the reader has taken all that did: thus none overtakes another.  The channel
// beneath also carries bells, and numbers tell the two apart.
struct Peer {
  explicit Peer(ShmChannelPeer shared)
      : rank(shared.rank), mine(std::move(shared.mine)), theirs(std::move(shared.theirs)) {}

  ControlRing& in() const { return *reinterpret_cast<ControlRing*>(mine.lane(0, 0).data); }
  ControlRing& out() const { return *reinterpret_cast<ControlRing*>(theirs.lane(0, 0).data); }

  const int rank;
  const Inbox mine;
  const Inbox theirs;
  bool is_lost = false;
  uint64_t sent_beneath = 0;  // messages and bells
  uint64_t received_beneath = 0;
  uint64_t sent_by_detour = 0;  // messages
  bool takes_detour = false;
};

class ShmChannel final : public Channel {
 public:
  ShmChannel(std::unique_ptr<Channel> beneath, std::vector<ShmChannelPeer> peers,
             const ShmChannelOptions& options)
      : beneath_(std::move(beneath)),
        index_of_(static_cast<size_t>(beneath_->size()), -1),
        spins_(options.spin.Budgets()) {
    for (ShmChannelPeer& each : peers) {
      index_of_[static_cast<size_t>(each.rank)] = static_cast<int>(peers_.size());
      peers_.emplace_back(std::move(each));
    }
    const int in_a_star = beneath_->rank() == 0 ? beneath_->size() - 1 : 1;
    const int neighbours = options.neighbours < 0 ? in_a_star : options.neighbours;
    is_complete_ = static_cast<int>(peers_.size()) == neighbours;
  }

  ~ShmChannel() override {
    for (const Peer& peer : peers_) peer.in().reader.has_left.store(1);
  }

  int rank() const override { return beneath_->rank(); }
  int size() const override { return beneath_->size(); }
  Status Send(int peer, ConstBytes message) override;
  Result<std::optional<ChannelMessage>> Receive(Deadline deadline) override;

  void SetWaiter(Waiter waiter) override { spins_.SetWaiter(waiter); }

  void Wake() override {
    is_woken_.store(true);
    if (is_sleeping_.load()) beneath_->Wake();
  }
  TransportCounters counters() const override { return beneath_->counters(); }

 private:
  // A look at the rings, and at the channel beneath where that is due; whether there is an event.
  bool Look();
  void LookBeneath();
  void Sleep(Deadline deadline);
  void Handle(Result<std::optional<ChannelMessage>> received);
  // Appends the next message, if any.
  bool TakeFrom(Peer& peer);
  // Tells where this thread waits; whether a peer was last seen on the same core.
  bool SharesCore();
  Peer* Find(int rank) {
    if (rank < 0 || rank >= size() || index_of_[static_cast<size_t>(rank)] < 0) return nullptr;
    return &peers_[static_cast<size_t>(index_of_[static_cast<size_t>(rank)])];
  }

  const std::unique_ptr<Channel> beneath_;
  std::vector<int> index_of_;  // by rank; -1: no shared memory
  std::deque<Peer> peers_;
  bool is_complete_ = false;  // no message ever starts beneath
  std::deque<Event> events_;
  uint32_t messages_ = 0;
  SpinBudgets spins_;
  std::atomic<bool> is_woken_{false};
  std::atomic<bool> is_sleeping_{false};
};

Status ShmChannel::Send(int rank, ConstBytes message) {
  Peer* const peer = Find(rank);
  // The thread that does the engine's steps calls this and Receive; it holds the step mutex, so
  // there is no lock here.
  if (peer == nullptr || peer->is_lost || message.size() > kChannelMessageBytesMax ||
      peer->out().reader.has_left.load() != 0) {
    return beneath_->Send(rank, message);  // or says why not
  }
  ControlRing& ring = peer->out();
  // Messages keep their order over two ways only if the ring is used again after the reader has
  // taken all of the detour.
  if (peer->takes_detour && ring.reader.detour_consumed.load() == peer->sent_by_detour) {
    peer->takes_detour = false;
    ring.writer.detour_from.store(0);
  }
  if (!peer->takes_detour && ring.TryPut(message)) {
    if (ring.reader.is_sleeping.load() == 0 || ring.reader.is_sleeping.exchange(0) == 0) return {};
    RABIT_RETURN_IF_ERROR(beneath_->Send(rank, {}));
    ++peer->sent_beneath;
    return {};
  }
  // Before the message: the reader must know, when it sees the message beneath, that it is none of
  // the bells.
  if (!peer->takes_detour) ring.writer.detour_from.store(peer->sent_beneath + 1);
  peer->takes_detour = true;
  RABIT_RETURN_IF_ERROR(beneath_->Send(rank, message));
  ++peer->sent_beneath;
  ++peer->sent_by_detour;
  return {};
}

Result<std::optional<ChannelMessage>> ShmChannel::Receive(Deadline deadline) {
  SpinWait spin(spins_.current(), kLooksPerReading);
  while (!Look()) {
    if (is_woken_.load(std::memory_order_relaxed) && is_woken_.exchange(false)) {
      spin.OnFound();
      return std::optional<ChannelMessage>();
    }
    if (spin.IsClockDue()) {
      const Deadline now = Clock::now();
      if (now >= deadline) {
        LookBeneath();
        if (events_.empty()) return std::optional<ChannelMessage>();
        break;
      }
      if (!spin.MaySpin(now, SharesCore())) {
        Sleep(deadline);
        continue;
      }
    }
    spin.Rest();
  }
  spin.OnFound();
  Event event = std::move(events_.front());
  events_.pop_front();
  if (!event.loss.ok()) return event.loss;
  return std::optional(std::move(event.message));
}

bool ShmChannel::Look() {
  if (!events_.empty()) return true;
  for (Peer& peer : peers_) {
    if (!TakeFrom(peer)) continue;
    if (++messages_ % kMessagesPerLookBeneath == 0) LookBeneath();
    return true;
  }
  if (!is_complete_) LookBeneath();
  return !events_.empty();
}

bool ShmChannel::SharesCore() {
  const uint32_t here = ThisCore();
  bool shares = false;
  for (const Peer& peer : peers_) {
    // Each side writes on which core it waits: one that finds its peer on its own core sleeps, as
    // the peer cannot run before that.
    peer.in().reader.waiter.Tell(here);
    shares = shares || peer.out().reader.waiter.Is(here);
  }
  return shares;
}

bool ShmChannel::TakeFrom(Peer& peer) {
  if (peer.is_lost || !peer.in().has_message()) return false;
  Result<std::optional<std::vector<std::byte>>> taken = peer.in().Take();
  if (!taken.ok()) {
    peer.is_lost = true;
    events_.push_back({{},
                       PeerLost(peer.rank, "rank " + std::to_string(peer.rank) + ": " +
                                               taken.status().message())});
    return true;
  }
  if (!*taken) return false;
  events_.push_back({{peer.rank, std::move(**taken)}, {}});
  return true;
}

void ShmChannel::LookBeneath() { Handle(beneath_->Receive(Deadline{})); }

void ShmChannel::Sleep(Deadline deadline) {
  // Wake() reads it on another thread, and wakes the channel beneath only then.
  is_sleeping_.store(true);
  bool has_news = is_woken_.load();
  // Whoever writes after this sees it and sends a bell; what was written before is seen here.
  for (const Peer& peer : peers_) {
    peer.in().reader.is_sleeping.store(1, std::memory_order_seq_cst);
    has_news = has_news || peer.in().writer.written.load(std::memory_order_seq_cst) !=
                               peer.in().reader.consumed.load(std::memory_order_relaxed);
  }
  if (!has_news) Handle(beneath_->Receive(deadline));
  is_sleeping_.store(false);
  for (const Peer& peer : peers_) peer.in().reader.is_sleeping.store(0, std::memory_order_relaxed);
}

void ShmChannel::Handle(Result<std::optional<ChannelMessage>> received) {
  if (!received.ok()) {
    Peer* const peer = Find(received.status().culprit());
    // What it wrote before its end comes first.
    while (peer != nullptr && TakeFrom(*peer)) {
    }
    if (peer != nullptr) peer->is_lost = true;
    events_.push_back({{}, received.status()});
    return;
  }
  if (!*received) return;
  Peer* const peer = Find((*received)->peer);
  if (peer == nullptr) {
    events_.push_back({std::move(**received), {}});
    return;
  }
  // The count of what comes beneath tells bells from messages; both sides count the same ones.
  const uint64_t number = peer->received_beneath++;
  ControlRing& ring = peer->in();
  const uint64_t detour_from = ring.writer.detour_from.load();
  if (detour_from == 0 || number + 1 < detour_from) return;  // a bell
  while (TakeFrom(*peer)) {
  }
  events_.push_back({std::move(**received), {}});
  ring.reader.detour_consumed.fetch_add(1);
}

}  // namespace

InboxShape ShmChannelShape() {
  return {.senders = 1, .streams = 1, .ring_bytes = static_cast<uint32_t>(kControlRingBytes)};
}

std::unique_ptr<Channel> MakeShmChannel(std::unique_ptr<Channel> beneath,
                                        std::vector<ShmChannelPeer> peers,
                                        const ShmChannelOptions& options) {
  return std::make_unique<ShmChannel>(std::move(beneath), std::move(peers), options);
}

Result<std::unique_ptr<Channel>> ConnectShmChannel(const ConnectContext& context,
                                                   const RankTree& tree,
                                                   std::unique_ptr<Channel> beneath,
                                                   const ShmChannelOptions& options) {
  std::vector<int> ranks;
  const std::vector<int> neighbours = tree.Neighbours(context.rank);
  for (int peer : neighbours) {
    if (context.topology.SameHost(peer, context.rank)) ranks.push_back(peer);
  }
  if (ranks.empty()) return beneath;
  const ShmAgreement agreement{.shape = ShmChannelShape(), .single_copy = SingleCopy::kOff};
  std::vector<Inbox> inboxes;
  for (size_t i = 0; i < ranks.size(); ++i) {
    RABIT_ASSIGN_OR_RETURN(Inbox inbox, Inbox::Create(agreement.shape));
    inboxes.push_back(std::move(inbox));
  }
  std::vector<ShmInvitation> invited;
  for (size_t i = 0; i < ranks.size(); ++i) invited.push_back({ranks[i], &inboxes[i]});
  RABIT_ASSIGN_OR_RETURN(
      std::vector<ShmPeer> met,
      MeetShmPeers(context, invited, "control", ShmMeeting::kNeighbours, agreement));
  std::vector<ShmChannelPeer> peers;
  for (size_t i = 0; i < met.size(); ++i) {
    inboxes[i].CloseFd();
    peers.push_back({met[i].rank, std::move(inboxes[i]), std::move(met[i].inbox)});
  }
  ShmChannelOptions made = options;
  made.neighbours = static_cast<int>(neighbours.size());
  return MakeShmChannel(std::move(beneath), std::move(peers), made);
}

}  // namespace rabit

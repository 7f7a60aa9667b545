#include "testing/inproc_channel.h"

#include <atomic>
#include <deque>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/wake_signal.h"
#include "transport/channel_options.h"

namespace rabit::testing {
namespace {

enum class Presence { kOpen, kGone, kLost };

// What Receive returns next: a message, or the loss of a peer.
struct Event {
  ChannelMessage message;
  Status loss;
};

struct Inbox {
  explicit Inbox(int size) : queued_bytes(static_cast<size_t>(size)) {}

  // One producer of `ready` per event plus one per wake; Receive takes all of the wakes at once.
  WakeSignal signal;
  std::atomic<size_t> events_ready{0};
  std::atomic<bool> is_woken{false};
  Mutex mutex;
  std::deque<Event> events RABIT_GUARDED_BY(mutex);
  std::vector<size_t> queued_bytes RABIT_GUARDED_BY(mutex);  // per sender
};

}  // namespace

struct InprocHub::Shared {
  explicit Shared(RankTree given)
      : tree(std::move(given)), states(static_cast<size_t>(tree.size())) {
    for (int rank = 0; rank < tree.size(); ++rank)
      inboxes.push_back(std::make_unique<Inbox>(tree.size()));
  }
  int size() const { return static_cast<int>(inboxes.size()); }
  Presence StateOf(int rank) const { return states[static_cast<size_t>(rank)].load(); }
  Inbox& InboxOf(int rank) { return *inboxes[static_cast<size_t>(rank)]; }

  // The first of goodbye and death counts; false if it came second.
  bool Leave(int rank, Presence how) {
    Presence open = Presence::kOpen;
    return states[static_cast<size_t>(rank)].compare_exchange_strong(open, how);
  }

  void Push(int to, Event event) {
    Inbox& inbox = InboxOf(to);
    {
      MutexLock lock(inbox.mutex);
      inbox.events.push_back(std::move(event));
    }
    inbox.events_ready.fetch_add(1);
    inbox.signal.Notify();
  }

  const RankTree tree;
  std::vector<std::unique_ptr<Inbox>> inboxes;
  std::vector<std::atomic<Presence>> states;
};

class InprocHub::HubChannel final : public Channel {
 public:
  HubChannel(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)), rank_(rank), inbox_(shared_->InboxOf(rank)) {}
  ~HubChannel() override { shared_->Leave(rank_, Presence::kGone); }

  int rank() const override { return rank_; }
  int size() const override { return shared_->size(); }

  Status Send(int peer, ConstBytes message) override {
    if (peer < 0 || peer >= size() || !shared_->tree.AreLinked(peer, rank_)) {
      return InvalidArgument("rank " + std::to_string(rank_) + " has no channel to rank " +
                             std::to_string(peer) + ": the two are no neighbours in the tree");
    }
    if (message.size() > kChannelMessageBytesMax) {
      return InvalidArgument("a control message to rank " + std::to_string(peer) + " has " +
                             std::to_string(message.size()) + " bytes; at most " +
                             std::to_string(kChannelMessageBytesMax) + " are allowed");
    }
    if (shared_->StateOf(peer) == Presence::kGone) {
      return Aborted("rank " + std::to_string(peer) +
                     " has left the job: nothing can be sent to it");
    }
    if (shared_->StateOf(peer) == Presence::kLost || shared_->StateOf(rank_) == Presence::kLost) {
      return PeerLost(peer, "rank " + std::to_string(peer) + " is lost: nothing can be sent to it");
    }
    Inbox& inbox = shared_->InboxOf(peer);
    {
      MutexLock lock(inbox.mutex);
      size_t& queued = inbox.queued_bytes[static_cast<size_t>(rank_)];
      if (queued + message.size() > kChannelQueueBytesMax) {
        return ResourceExhausted(std::to_string(queued) + " bytes wait for rank " +
                                 std::to_string(peer) + ", which does not take them");
      }
      queued += message.size();
    }
    shared_->Push(peer, {{rank_, {message.begin(), message.end()}}, {}});
    return {};
  }

  Result<std::optional<ChannelMessage>> Receive(Deadline deadline) override {
    inbox_.signal.Wait([&] { return inbox_.events_ready.load() > 0 || inbox_.is_woken.load(); },
                       deadline);
    if (inbox_.events_ready.load() == 0) {
      inbox_.is_woken.exchange(false);  // pairs with Wake: the caller sees what came before it
      return std::optional<ChannelMessage>();
    }
    inbox_.events_ready.fetch_sub(1);
    MutexLock lock(inbox_.mutex);
    Event event = std::move(inbox_.events.front());
    inbox_.events.pop_front();
    if (!event.loss.ok()) return event.loss;
    inbox_.queued_bytes[static_cast<size_t>(event.message.peer)] -= event.message.payload.size();
    return std::optional(std::move(event.message));
  }

  void Wake() override {
    inbox_.is_woken.store(true);
    inbox_.signal.Notify();
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const int rank_;
  Inbox& inbox_;
};

InprocHub::InprocHub(RankTree tree) : shared_(std::make_shared<Shared>(std::move(tree))) {}
InprocHub::~InprocHub() = default;

std::unique_ptr<Channel> InprocHub::Connect(int rank) {
  RABIT_CHECK(rank >= 0 && rank < shared_->size(), "no such rank in the hub");
  return std::make_unique<HubChannel>(shared_, rank);
}

void InprocHub::Kill(int rank, std::string_view how) {
  if (!shared_->Leave(rank, Presence::kLost)) return;
  for (int other = 0; other < shared_->size(); ++other) {
    if (!shared_->tree.AreLinked(other, rank)) continue;
    shared_->Push(other,
                  {{}, PeerLost(rank, "rank " + std::to_string(rank) + " " + std::string(how))});
  }
}

}  // namespace rabit::testing

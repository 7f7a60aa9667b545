#include "testing/inproc_transport.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace rabit::testing {
namespace {

// One side of a message.  Everything but the bytes in the buffers is guarded by the mutex of the
// receiver's mailbox.
struct Side {
  enum class State { kQueued, kCopying, kDone };

  int owner = -1;  // the rank that posted it
  int peer = -1;
  bool is_send = false;
  Tag tag = 0;
  ConstBytes from;  // of a send
  Bytes to;         // of a receive
  State state = State::kQueued;
  Status status;
  std::condition_variable done;

  size_t bytes() const { return is_send ? from.size() : to.size(); }
  void Finish(Status result) {
    state = State::kDone;
    status = std::move(result);
    done.notify_all();
  }
};

// Messages on the way to one rank.
struct Mailbox {
  struct Queue {
    std::deque<std::shared_ptr<Side>> sends;
    std::deque<std::shared_ptr<Side>> receives;
    bool empty() const { return sends.empty() && receives.empty(); }
  };
  using Key = std::pair<int, Tag>;  // sender, tag

  std::mutex mutex;
  std::map<Key, Queue> queues;  // only those that hold something
};

struct RankState {
  std::mutex mutex;
  Status failure;  // set once: why this rank's operations fail
  bool is_closed = false;
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0}, messages_sent{0}, messages_received{0};
};

}  // namespace

class InprocFabricState {
 public:
  explicit InprocFabricState(int size)
      : size(size),
        mailboxes(static_cast<size_t>(size)),
        ranks(static_cast<size_t>(size)),
        is_cut(static_cast<size_t>(size * size)) {}

  // Queues `mine`, or finishes it with the other side that waits for it.
  void Post(const std::shared_ptr<Side>& mine);
  void Cancel(Side& side);
  // Fails every queued operation for which `affected` holds.
  template <class Predicate>
  void FailQueued(const Status& why, Predicate affected);
  Mailbox& MailboxOf(const Side& side) {
    return mailboxes[static_cast<size_t>(side.is_send ? side.peer : side.owner)];
  }

  const int size;
  std::vector<Mailbox> mailboxes;
  std::vector<RankState> ranks;
  std::vector<std::atomic<bool>> is_cut;  // by both ranks of a pair

  std::atomic<bool>& IsCut(int rank, int peer) {
    return is_cut[static_cast<size_t>(rank * size + peer)];
  }

 private:
  Status FailureOf(const Side& side);
  void Exchange(std::unique_lock<std::mutex> lock, Side& send, Side& receive);
};

namespace {

Mailbox::Key KeyOf(const Side& side) { return {side.is_send ? side.owner : side.peer, side.tag}; }

Status CutOff(int peer) {
  return PeerLost(peer, "rank " + std::to_string(peer) + " cannot be reached");
}

std::string CountOfBytes(size_t count) { return std::to_string(count) + " bytes"; }

class InprocOperation final : public PendingOperation {
 public:
  InprocOperation(std::shared_ptr<InprocFabricState> fabric, std::shared_ptr<Side> side)
      : fabric_(std::move(fabric)), side_(std::move(side)) {}

  Status Wait(Deadline deadline) override {
    std::unique_lock lock(fabric_->MailboxOf(*side_).mutex);
    const auto is_done = [this] { return side_->state == Side::State::kDone; };
    if (side_->done.wait_until(lock, deadline, is_done)) return side_->status;
    return TimedOut(
        "rank " + std::to_string(side_->owner) + ": " +
        (side_->is_send ? "send to" : "receive from") + " rank " + std::to_string(side_->peer) +
        " (" + CountOfBytes(side_->bytes()) +
        ") is not finished: the peer has not posted the other side before the deadline");
  }

  void Cancel() override { fabric_->Cancel(*side_); }

 private:
  std::shared_ptr<InprocFabricState> fabric_;
  std::shared_ptr<Side> side_;
};

class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<InprocFabricState> fabric, int rank)
      : fabric_(std::move(fabric)), rank_(rank) {}
  ~InprocTransport() override;

  std::string_view name() const override { return "inproc"; }
  int rank() const override { return rank_; }
  int size() const override { return fabric_->size; }
  Operation Send(int peer, Tag tag, ConstBytes buffer) override;
  Operation Recv(int peer, Tag tag, Bytes buffer) override;
  void Abort(Status why) override;
  TransportCounters counters() const override;

 private:
  Operation Start(std::shared_ptr<Side> side);

  const std::shared_ptr<InprocFabricState> fabric_;
  const int rank_;
};

InprocTransport::~InprocTransport() {
  const Status lost = PeerLost(rank_, "rank " + std::to_string(rank_) + " closed its transport");
  {
    RankState& mine = fabric_->ranks[static_cast<size_t>(rank_)];
    std::lock_guard lock(mine.mutex);
    mine.is_closed = true;
    if (mine.failure.ok()) mine.failure = lost;
  }
  fabric_->FailQueued(
      lost, [this](const Side& side) { return side.owner == rank_ || side.peer == rank_; });
}

Operation InprocTransport::Send(int peer, Tag tag, ConstBytes buffer) {
  auto side = std::make_shared<Side>();
  side->is_send = true;
  side->peer = peer;
  side->tag = tag;
  side->from = buffer;
  return Start(std::move(side));
}

Operation InprocTransport::Recv(int peer, Tag tag, Bytes buffer) {
  auto side = std::make_shared<Side>();
  side->peer = peer;
  side->tag = tag;
  side->to = buffer;
  return Start(std::move(side));
}

Operation InprocTransport::Start(std::shared_ptr<Side> side) {
  side->owner = rank_;
  if (side->peer < 0 || side->peer >= size() || side->peer == rank_) {
    return Operation(InvalidArgument("rank " + std::to_string(rank_) + " has no peer " +
                                     std::to_string(side->peer) + ": the job has " +
                                     std::to_string(size()) + " ranks"));
  }
  fabric_->Post(side);
  return Operation(std::make_unique<InprocOperation>(fabric_, std::move(side)));
}

void InprocTransport::Abort(Status why) {
  {
    RankState& mine = fabric_->ranks[static_cast<size_t>(rank_)];
    std::lock_guard lock(mine.mutex);
    if (!mine.failure.ok()) return;
    mine.failure = why;
  }
  fabric_->FailQueued(why, [this](const Side& side) { return side.owner == rank_; });
}

TransportCounters InprocTransport::counters() const {
  const RankState& mine = fabric_->ranks[static_cast<size_t>(rank_)];
  TransportCounters counters;
  counters.bytes_sent = mine.bytes_sent.load(std::memory_order_relaxed);
  counters.bytes_received = mine.bytes_received.load(std::memory_order_relaxed);
  counters.messages_sent = mine.messages_sent.load(std::memory_order_relaxed);
  counters.messages_received = mine.messages_received.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace

// The caller holds the mailbox, so that an Abort either sees the side queued or is seen here.
Status InprocFabricState::FailureOf(const Side& side) {
  {
    RankState& mine = ranks[static_cast<size_t>(side.owner)];
    std::lock_guard lock(mine.mutex);
    if (!mine.failure.ok()) return mine.failure;
  }
  if (IsCut(side.owner, side.peer).load()) return CutOff(side.peer);
  RankState& theirs = ranks[static_cast<size_t>(side.peer)];
  std::lock_guard lock(theirs.mutex);
  if (!theirs.is_closed) return Status();
  return PeerLost(side.peer, "rank " + std::to_string(side.peer) + " closed its transport");
}

void InprocFabricState::Post(const std::shared_ptr<Side>& mine) {
  Mailbox& mailbox = MailboxOf(*mine);
  std::unique_lock lock(mailbox.mutex);
  if (Status failure = FailureOf(*mine); !failure.ok()) return mine->Finish(std::move(failure));

  Mailbox::Queue& queue = mailbox.queues[KeyOf(*mine)];
  auto& others = mine->is_send ? queue.receives : queue.sends;
  if (others.empty()) {
    (mine->is_send ? queue.sends : queue.receives).push_back(mine);
    return;
  }
  const std::shared_ptr<Side> other = others.front();
  others.pop_front();
  if (queue.empty()) mailbox.queues.erase(KeyOf(*mine));
  if (mine->is_send) {
    Exchange(std::move(lock), *mine, *other);
  } else {
    Exchange(std::move(lock), *other, *mine);
  }
}

void InprocFabricState::Exchange(std::unique_lock<std::mutex> lock, Side& send, Side& receive) {
  if (send.from.size() != receive.to.size()) {
    receive.Finish(Mismatch("rank " + std::to_string(receive.owner) + " expects " +
                            CountOfBytes(receive.to.size()) + " from rank " +
                            std::to_string(send.owner) + ", which sent " +
                            CountOfBytes(send.from.size()) +
                            "; call the same collective with the same " + "sizes on every rank"));
    send.Finish(Status());
    return;
  }
  // The copy runs without the lock; a Cancel of either side waits for it.
  send.state = receive.state = Side::State::kCopying;
  lock.unlock();
  if (!send.from.empty()) std::memcpy(receive.to.data(), send.from.data(), send.from.size());
  RankState& sender = ranks[static_cast<size_t>(send.owner)];
  RankState& receiver = ranks[static_cast<size_t>(receive.owner)];
  sender.bytes_sent.fetch_add(send.from.size(), std::memory_order_relaxed);
  sender.messages_sent.fetch_add(1, std::memory_order_relaxed);
  receiver.bytes_received.fetch_add(send.from.size(), std::memory_order_relaxed);
  receiver.messages_received.fetch_add(1, std::memory_order_relaxed);
  lock.lock();
  send.Finish(Status());
  receive.Finish(Status());
}

void InprocFabricState::Cancel(Side& side) {
  Mailbox& mailbox = MailboxOf(side);
  std::unique_lock lock(mailbox.mutex);
  if (side.state == Side::State::kQueued) {
    auto found = mailbox.queues.find(KeyOf(side));
    auto& queue = side.is_send ? found->second.sends : found->second.receives;
    std::erase_if(queue, [&side](const auto& queued) { return queued.get() == &side; });
    if (found->second.empty()) mailbox.queues.erase(found);
    side.Finish(Aborted("cancelled"));
    return;
  }
  side.done.wait(lock, [&side] { return side.state == Side::State::kDone; });
}

template <class Predicate>
void InprocFabricState::FailQueued(const Status& why, Predicate affected) {
  for (Mailbox& mailbox : mailboxes) {
    std::lock_guard lock(mailbox.mutex);
    const auto fail = [&](const std::shared_ptr<Side>& side) {
      if (!affected(*side)) return false;
      side->Finish(why);
      return true;
    };
    for (auto at = mailbox.queues.begin(); at != mailbox.queues.end();) {
      std::erase_if(at->second.sends, fail);
      std::erase_if(at->second.receives, fail);
      at = at->second.empty() ? mailbox.queues.erase(at) : std::next(at);
    }
  }
}

void InprocFabric::Cut(int a, int b) {
  for (const auto& [rank, peer] : {std::pair(a, b), {b, a}}) {
    state_->IsCut(rank, peer).store(true);
  }
  for (const auto& [rank, peer] : {std::pair(a, b), {b, a}}) {
    state_->FailQueued(CutOff(peer), [rank = rank, peer = peer](const Side& side) {
      return side.owner == rank && side.peer == peer;
    });
  }
}

InprocFabric::InprocFabric(int size) : state_(std::make_shared<InprocFabricState>(size)) {
  RABIT_CHECK(size >= 1, "size is " + std::to_string(size));
}

std::unique_ptr<Transport> InprocFabric::Connect(int rank) {
  RABIT_CHECK(rank >= 0 && rank < state_->size, "rank is " + std::to_string(rank));
  return std::make_unique<InprocTransport>(state_, rank);
}

}  // namespace rabit::testing

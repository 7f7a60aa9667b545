#include "transport/shm/shm_stream.h"

#include <memory>
#include <string>
#include <utility>

#include "base/spin_wait.h"

namespace rabit {
namespace {

// A sleeper looks this often whether its peers are alive; news wakes it at once.
constexpr std::chrono::milliseconds kLivenessInterval{100};
// The clock is read once in this many looks.
constexpr uint32_t kLooksPerClock = 16;

std::string Describe(const char* verb, int rank, Tag tag, size_t bytes) {
  return std::string("shm: ") + verb + " rank " + std::to_string(rank) + " of " +
         std::to_string(bytes) + " bytes (tag " + std::to_string(tag) + ")";
}

}  // namespace

class ShmStream::PendingSend final : public PendingOperation {
 public:
  PendingSend(ShmStream& stream, int peer_index, Tag tag, ConstBytes buffer)
      : stream_(stream), peer_index_(peer_index) {
    state.tag = tag;
    state.buffer = buffer;
  }
  Status Wait(Deadline deadline) override {
    return stream_.Wait(state, deadline, "send to", peer_index_);
  }
  void Cancel() override {
    std::lock_guard lock(stream_.mutex_);
    // Under the lock no other thread copies from the buffer; after Cancel nobody does, so the
    // caller may free it.
    if (!state.is_done) stream_.peers_[peer_index_].outbound.Cancel(state);
  }

  SendState state;

 private:
  ShmStream& stream_;
  const int peer_index_;
};

class ShmStream::PendingRecv final : public PendingOperation {
 public:
  PendingRecv(ShmStream& stream, int peer_index, RecvState recv)
      : state(std::move(recv)), stream_(stream), peer_index_(peer_index) {}
  Status Wait(Deadline deadline) override {
    return stream_.Wait(state, deadline, "receive from", peer_index_);
  }
  void Cancel() override {
    std::lock_guard lock(stream_.mutex_);
    // The lane holds a pointer to this state, which goes with the operation.
    if (!state.is_done) stream_.peers_[peer_index_].inbound.Cancel(state);
  }

  RecvState state;

 private:
  ShmStream& stream_;
  const int peer_index_;
};

int ShmStream::AddPeer(const PeerProcess& peer, LaneMemory outbound, Doorbell& peer_bell,
                       LaneMemory inbound, LaneOptions options) {
  std::lock_guard lock(mutex_);
  // Peers are added before any lane of the engine runs, and the list never changes after that.
  peers_.emplace_back(peer, peer_bell, OutboundLane(outbound, peer_bell, options),
                      InboundLane(inbound, peer_bell, peer, options.is_checked));
  return static_cast<int>(peers_.size()) - 1;
}

Operation ShmStream::Send(int peer_index, Tag tag, ConstBytes buffer) {
  std::lock_guard lock(mutex_);
  if (!aborted_.ok()) return Operation(aborted_);
  Peer& peer = peers_[peer_index];
  if (!peer.lost.ok()) return Operation(peer.lost);
  counters_.bytes_sent += buffer.size();
  ++counters_.messages_sent;
  // Most messages fit into the ring at once, and need neither an allocation nor a place in a list.
  if (peer.outbound.TrySendNow(tag, buffer)) return Operation(Status());
  auto pending = std::make_unique<PendingSend>(*this, peer_index, tag, buffer);
  peer.outbound.Queue(pending->state);
  if (pending->state.is_done) return Operation(pending->state.status);
  return Operation(std::move(pending));
}

Operation ShmStream::Recv(int peer_index, RecvState recv) {
  std::lock_guard lock(mutex_);
  if (!aborted_.ok()) return Operation(aborted_);
  Peer& peer = peers_[peer_index];
  if (!peer.lost.ok()) return Operation(peer.lost);
  auto pending = std::make_unique<PendingRecv>(*this, peer_index, std::move(recv));
  // The lane keeps a pointer into the operation, which is on the heap so that it does not move.
  peer.inbound.Post(pending->state);
  return Operation(std::move(pending));
}

void ShmStream::Abort(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    // The first cause stays.
    if (!aborted_.ok()) return;
    aborted_ = why;
    for (Peer& peer : peers_) FailPeer(peer, why);
  }
  // Without the mutex, which the threads that wake up take first.
  RingAlways(bell_);
}

void ShmStream::AddCounters(TransportCounters& sum) const {
  std::lock_guard lock(mutex_);
  sum.bytes_sent += counters_.bytes_sent;
  sum.bytes_received += counters_.bytes_received;
  sum.messages_sent += counters_.messages_sent;
  sum.messages_received += counters_.messages_received;
}

template <class State>
Status ShmStream::Wait(const State& state, Deadline deadline, const char* verb, int peer_index) {
  using Clock = std::chrono::steady_clock;
  SpinWait spin(spins_.current(), kLooksPerClock);
  const CorePlace& peer_place = peers_[peer_index].bell.waiter;
  for (;;) {
    bool has_moved = false;
    {
      std::lock_guard lock(mutex_);
      // A thread that waits moves the messages of all operations of the stream: there is no other
      // thread for them.
      has_moved = Advance(state);
      if (state.is_done) {
        spin.OnFound();
        Count(state);
        return state.status;
      }
    }
    if (has_moved) spin.OnFound();
    if (!spin.IsClockDue()) {
      if (!has_moved) spin.Rest();
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (now >= deadline) {
      return TimedOut(
          Describe(verb, peers_[peer_index].process.rank(), state.tag, state.buffer.size()) +
          " did not finish by its deadline; is that rank in the same collective?");
    }
    if (has_moved) continue;
    // A rank on this core, where the kernel puts both while something else keeps the others busy,
    // gets on only if it has the core.
    const uint32_t here = ThisCore();
    bell_.waiter.Tell(here);
    if (spin.MaySpin(now, peer_place.Is(here))) {
      spin.Rest();
      continue;
    }

    // First the number of sleepers, then the sequence, then one more look: a peer that writes after
    // the look sees the sleeper, and rings; what it wrote before is seen by the look.
    bell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = bell_.sequence.load(std::memory_order_seq_cst);
    {
      std::lock_guard lock(mutex_);
      has_moved = Advance(state) || state.is_done;
    }
    const Clock::time_point liveness_check = now + kLivenessInterval;
    if (!has_moved) SleepUntilRung(bell_, seen, std::min(deadline, liveness_check));
    bell_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    // A process that was killed rings no bell.
    if (!has_moved && Clock::now() >= liveness_check) FindLostPeers();
  }
}

// Under the lock.
void ShmStream::Count(const RecvState& received) {
  if (!received.status.ok()) return;
  counters_.bytes_received += received.buffer.size();
  ++counters_.messages_received;
}

// Under the lock.  Moves whatever can be moved; whether anything did.
template <class State>
bool ShmStream::Advance(const State& state) {
  bool has_moved = false;
  uint64_t finished = 0;
  if (state.is_done) return true;
  // All peers, and not only the one that is waited for: its message may be behind one that another
  // peer has to take first.
  for (Peer& peer : peers_) AdvancePeer(peer, has_moved, finished);
  // Another thread may be asleep for what this one has finished.
  if (finished > (state.is_done ? 1u : 0u)) Ring(bell_);
  return has_moved;
}

void ShmStream::AdvancePeer(Peer& peer, bool& has_moved, uint64_t& finished) {
  if (!peer.lost.ok()) return;
  if (peer.outbound.Progress(finished)) has_moved = true;
  Status status = peer.inbound.Progress(has_moved, finished);
  if (!status.ok()) FailPeer(peer, status);
}

void ShmStream::FindLostPeers() {
  std::lock_guard lock(mutex_);
  for (Peer& peer : peers_) {
    if (!peer.lost.ok() || (peer.outbound.is_idle() && peer.inbound.is_idle())) continue;
    // Idle lanes are left alone: a peer that has ended its part may go.
    if (peer.process.IsAlive()) continue;
    // What it sent before it went is still in the ring.
    for (bool has_moved = true; has_moved && peer.lost.ok();) {
      has_moved = false;
      uint64_t finished = 0;
      AdvancePeer(peer, has_moved, finished);
    }
    const int rank = peer.process.rank();
    if (peer.lost.ok()) {
      FailPeer(peer, PeerLost(rank, "shm: rank " + std::to_string(rank) +
                                        " has ended or closed its transport with messages under "
                                        "way; see its own error"));
    }
  }
}

// Under the lock.
void ShmStream::FailPeer(Peer& peer, const Status& why) {
  if (peer.lost.ok()) peer.lost = why;
  // Every operation with this peer ends with the same cause; those with others go on.
  peer.outbound.FailAll(peer.lost);
  peer.inbound.FailAll(peer.lost);
  RingAlways(bell_);
}

}  // namespace rabit

// ShmStream: the lanes of one stream to and from every peer, and the threads that wait on them.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <vector>

#include "base/bytes.h"
#include "base/spin_times.h"
#include "base/status.h"
#include "base/operation.h"
#include "transport/shm/inbound_lane.h"
#include "transport/shm/inbox.h"
#include "transport/shm/outbound_lane.h"
#include "transport/shm/peer_process.h"
#include "transport/transport.h"

namespace rabit {

// Thread-safe.  There is no I/O thread: whoever waits for one operation advances all operations of
// the stream while it waits, then spins for `spin`, then sleeps on the stream's doorbell.
class ShmStream {
 public:
  ShmStream(Doorbell& bell, const SpinTimes& spin) : bell_(bell), spins_(spin.Budgets()) {}

  // Before the first operation only.  `peer` and the memory outlive the stream.  Returns the index
  // by which operations name the peer.
  int AddPeer(const PeerProcess& peer, LaneMemory outbound, Doorbell& peer_bell, LaneMemory inbound,
              LaneOptions options);

  Operation Send(int peer_index, Tag tag, ConstBytes buffer);
  // `recv` has its tag, buffer and, for a reduction, reducer and scratch.
  Operation Recv(int peer_index, RecvState recv);
  void SetWaiter(Waiter waiter) { spins_.SetWaiter(waiter); }
  void Abort(const Status& why);
  void AddCounters(TransportCounters& sum) const;

 private:
  class PendingSend;
  class PendingRecv;

  struct Peer {
    Peer(const PeerProcess& process_, Doorbell& bell_, OutboundLane outbound_, InboundLane inbound_)
        : process(process_),
          bell(bell_),
          outbound(std::move(outbound_)),
          inbound(std::move(inbound_)) {}
    const PeerProcess& process;
    Doorbell& bell;
    OutboundLane outbound;
    InboundLane inbound;
    Status lost;
  };

  template <class State>
  Status Wait(const State& state, Deadline deadline, const char* verb, int peer_index);
  void Count(const RecvState& received);
  void Count(const SendState&) {}  // when it is sent
  template <class State>
  bool Advance(const State& state);
  void AdvancePeer(Peer& peer, bool& has_moved, uint64_t& finished);
  void FindLostPeers();
  void FailPeer(Peer& peer, const Status& why);

  Doorbell& bell_;
  SpinBudgets spins_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<Peer> peers_;
  Status aborted_;
  TransportCounters counters_;
};

}  // namespace rabit

// Channel: small control messages between a rank and its neighbours in the tree of ranks.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/spin_budget.h"
#include "base/status.h"
#include "transport/counters.h"

namespace rabit {

struct ChannelMessage {
  int peer = -1;
  std::vector<std::byte> payload;
};

// A rank talks to its parent and its children (RankTree); in a star, rank 0 to every rank and every
// other rank to rank 0.  The engine thread is the only caller, except for Wake.  Messages between
// two ranks arrive whole, once, in order.  A peer that dies, or is silent for longer than the
// heartbeat deadline, is reported by Receive as kPeerLost with the rank as culprit; heartbeats are
// sent by the channel itself.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Never waits for the peer: what the kernel does not take is queued (bounded;
  // kResourceExhausted).
  virtual Status Send(int peer, ConstBytes message) = 0;
  // The next message of any peer; empty when woken or at the deadline.  A lost peer is an error;
  // the other peers can still be received from and sent to afterwards.
  virtual Result<std::optional<ChannelMessage>> Receive(Deadline deadline) = 0;
  // Who calls Receive from now on; a hint how long to spin.
  virtual void SetWaiter(Waiter waiter) { (void)waiter; }
  // Makes a Receive that waits, or else the next one, return.  Any thread; never blocks.
  virtual void Wake() = 0;
  // Of the connections beneath; any thread.
  virtual TransportCounters counters() const { return {}; }
};

}  // namespace rabit

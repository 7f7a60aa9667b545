// Transport: moves bytes between this rank and its peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/operation.h"
#include "base/spin_budget.h"
#include "base/status.h"
#include "transport/counters.h"

namespace rabit {

// What RecvReduce does with a message, piece by piece: combines `piece` into the place of the
// buffer that it belongs to.  Both have the same length; pieces start at multiples of 64 bytes from
// the start of the message and come once each, in order.  It runs on a thread that waits and must
// not call the transport.  `context` is borrowed until the operation is over.
struct PieceReducer {
  void (*run)(const void* context, Bytes target, ConstBytes piece) = nullptr;
  const void* context = nullptr;
};

// Into how large messages a pipeline over this transport cuts a buffer.
struct ChunkLimits {
  int64_t bytes_min = 32 << 10;
  int64_t bytes_max = 256 << 10;  // a few of them fit into a core's cache
};

// Thread-safe: several lanes use one transport at once, each with its own stream (base/bytes.h).
// Contract, checked by testing/transport_conformance.h:
//  - messages with the same peer and tag arrive in the order they were sent;
//  - a message is received whole; a Recv whose size differs from the Send's fails both sides'
//    receiver with kMismatch naming both sizes;
//  - zero-byte messages are legal;
//  - Send may finish before the peer has posted its Recv, or wait for it: callers assume neither,
//    and post a Recv before they wait for the Send that makes the peer answer;
//  - different streams never block each other.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;  // "tcp", "shm"
  virtual std::string_view name_for(int peer) const {
    (void)peer;
    return name();
  }
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Operation Send(int peer, Tag tag, ConstBytes buffer) = 0;
  // Like Send, of a message that the peer answers when it has all of it, with one of its own on the
  // same stream.  The operation may finish as late as the receive of that one, because what tells
  // of the arrival may come with it: a message less, and nobody waits for it.  `buffer` may be
  // where the answer goes.
  virtual Operation SendAnswered(int peer, Tag tag, ConstBytes buffer) {
    return Send(peer, tag, buffer);
  }
  virtual Operation Recv(int peer, Tag tag, Bytes buffer) = 0;
  // Like Recv, but combines the message with what is in `buffer`: one pass over memory less where
  // a transport can show the arriving bytes in place.  `scratch` is as long as `buffer`, borrowed
  // as it is, and may be written.  After a failure the contents of `buffer` are undefined.
  virtual Operation RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                               PieceReducer reducer);
  // Who waits for the operations of `stream` from now on, and how many bytes the call has that they
  // are parts of; hints how long to spin.
  virtual void SetWaiter(int stream, Waiter waiter, size_t call_bytes) {
    (void)stream;
    (void)waiter;
    (void)call_bytes;
  }
  // Fails every present and future operation with `why`.  The first reason is kept.
  virtual void Abort(Status why) = 0;
  virtual TransportCounters counters() const = 0;
  // Equal on all ranks.
  virtual ChunkLimits chunk_limits() const { return {}; }
  // Up to so many bytes the peer can read a message where it arrives, while it is in a core's
  // cache; 0: there is no such difference.  Equal on both sides.
  virtual int64_t cached_message_bytes(int peer) const {
    (void)peer;
    return 0;
  }
};

}  // namespace rabit

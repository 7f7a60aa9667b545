// GroupTransport: a transport seen by the ranks of one group.
#pragma once

#include "base/group.h"
#include "transport/transport.h"

namespace rabit {

// Peer i is the i-th rank of the group, so a collective written for ranks 0 … n-1 runs unchanged on
// any subset.  Borrows both arguments, which must outlive it and its operations; several views may
// share one transport.  A view owns nothing: Abort reaches the whole transport, counters are the
// whole transport's.  Thread-safe.
class GroupTransport final : public Transport {
 public:
  GroupTransport(Transport& transport, const Group& group);  // this rank is a member

  std::string_view name() const override { return transport_.name(); }
  std::string_view name_for(int peer) const override;
  int rank() const override { return group_.my_index; }
  int size() const override { return group_.size(); }
  Operation Send(int peer, Tag tag, ConstBytes buffer) override;
  Operation SendAnswered(int peer, Tag tag, ConstBytes buffer) override;
  Operation Recv(int peer, Tag tag, Bytes buffer) override;
  Operation RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                       PieceReducer reducer) override;
  void SetWaiter(int stream, Waiter waiter, size_t call_bytes) override {
    transport_.SetWaiter(stream, waiter, call_bytes);
  }
  void Abort(Status why) override { transport_.Abort(std::move(why)); }
  TransportCounters counters() const override { return transport_.counters(); }
  ChunkLimits chunk_limits() const override { return transport_.chunk_limits(); }
  int64_t cached_message_bytes(int peer) const override;

 private:
  bool HasPeer(int peer) const { return peer >= 0 && peer < size() && peer != rank(); }
  Status NoPeer(int peer) const;

  Transport& transport_;
  const Group& group_;
};

}  // namespace rabit

// SharedTransport: one owner's hold on a transport that has several.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "transport/transport.h"

namespace rabit {

// Lets two routed transports have one part in common.  Passes everything on; Abort reaches every
// owner, counters are those of all owners together.  Thread-safe.
class SharedTransport final : public Transport {
 public:
  explicit SharedTransport(std::shared_ptr<Transport> transport)
      : transport_(std::move(transport)) {}

  std::string_view name() const override { return transport_->name(); }
  std::string_view name_for(int peer) const override { return transport_->name_for(peer); }
  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    return transport_->Send(peer, tag, buffer);
  }
  Operation SendAnswered(int peer, Tag tag, ConstBytes buffer) override {
    return transport_->SendAnswered(peer, tag, buffer);
  }
  Operation Recv(int peer, Tag tag, Bytes buffer) override {
    return transport_->Recv(peer, tag, buffer);
  }
  Operation RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                       PieceReducer reducer) override {
    return transport_->RecvReduce(peer, tag, buffer, scratch, reducer);
  }
  void SetWaiter(int stream, Waiter waiter, size_t call_bytes) override {
    transport_->SetWaiter(stream, waiter, call_bytes);
  }
  void Abort(Status why) override { transport_->Abort(std::move(why)); }
  TransportCounters counters() const override { return transport_->counters(); }
  ChunkLimits chunk_limits() const override { return transport_->chunk_limits(); }
  int64_t cached_message_bytes(int peer) const override {
    return transport_->cached_message_bytes(peer);
  }

 private:
  const std::shared_ptr<Transport> transport_;
};

}  // namespace rabit

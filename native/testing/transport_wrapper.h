// TransportWrapper: passes everything on to another transport; tests override what they look at.
// RecvReduce is the general one, which calls Recv: whoever overrides Recv sees all that arrives.
#pragma once

#include <memory>
#include <utility>

#include "transport/transport.h"

namespace rabit {

class TransportWrapper : public Transport {
 public:
  explicit TransportWrapper(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  std::string_view name_for(int peer) const override { return inner_->name_for(peer); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    return inner_->Send(peer, tag, buffer);
  }
  Operation SendAnswered(int peer, Tag tag, ConstBytes buffer) override {
    return inner_->SendAnswered(peer, tag, buffer);
  }
  Operation Recv(int peer, Tag tag, Bytes buffer) override {
    return inner_->Recv(peer, tag, buffer);
  }
  void SetWaiter(int stream, Waiter waiter, size_t call_bytes) override {
    inner_->SetWaiter(stream, waiter, call_bytes);
  }
  void Abort(Status why) override { inner_->Abort(std::move(why)); }
  TransportCounters counters() const override { return inner_->counters(); }
  ChunkLimits chunk_limits() const override { return inner_->chunk_limits(); }
  int64_t cached_message_bytes(int peer) const override {
    return inner_->cached_message_bytes(peer);
  }

 protected:
  Transport& inner() const { return *inner_; }

 private:
  const std::unique_ptr<Transport> inner_;
};

}  // namespace rabit

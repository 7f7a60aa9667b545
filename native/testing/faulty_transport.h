// FaultyTransport: a transport that misbehaves on purpose, for tests.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>

#include "transport/transport.h"

namespace rabit {

// Messages are counted from 0, in the order in which this rank starts to send them.
struct FaultPlan {
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

  std::chrono::microseconds send_delay{0};  // each Send takes this much longer to start
  uint64_t drop_message = kNever;           // is reported as sent and never arrives
  uint64_t break_at_message = kNever;       // from here on every operation fails with `failure`
  Status failure = Internal("a failure that a test asked for");
};

// Adds the faults of `plan` to `inner`.  Thread-safe.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}

  std::string_view name() const override { return inner_->name(); }
  std::string_view name_for(int peer) const override { return inner_->name_for(peer); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Operation Send(int peer, Tag tag, ConstBytes buffer) override;
  Operation Recv(int peer, Tag tag, Bytes buffer) override {
    return inner_->Recv(peer, tag, buffer);
  }
  Operation RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                       PieceReducer reducer) override {
    return inner_->RecvReduce(peer, tag, buffer, scratch, reducer);
  }
  void Abort(Status why) override { inner_->Abort(std::move(why)); }
  TransportCounters counters() const override { return inner_->counters(); }

 private:
  const std::unique_ptr<Transport> inner_;
  const FaultPlan plan_;
  std::atomic<uint64_t> messages_{0};
};

}  // namespace rabit

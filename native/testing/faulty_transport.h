// FaultyTransport: a transport that misbehaves on purpose, for tests.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>

#include "testing/transport_wrapper.h"

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
class FaultyTransport final : public TransportWrapper {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, FaultPlan plan)
      : TransportWrapper(std::move(inner)), plan_(std::move(plan)) {}

  Operation Send(int peer, Tag tag, ConstBytes buffer) override;
  Operation RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                       PieceReducer reducer) override {
    return inner().RecvReduce(peer, tag, buffer, scratch, reducer);
  }

 private:
  const FaultPlan plan_;
  std::atomic<uint64_t> messages_{0};
};

}  // namespace rabit

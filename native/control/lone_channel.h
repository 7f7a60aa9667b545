// LoneChannel: the channel of a job of one rank; nobody to talk to, but it can be waited on.
#pragma once

#include <atomic>

#include "base/wake_signal.h"
#include "transport/channel.h"

namespace rabit {

class LoneChannel final : public Channel {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status Send(int peer, ConstBytes message) override {
    (void)message;
    return InvalidArgument("rank " + std::to_string(peer) + " does not exist in a job of one rank");
  }
  Result<std::optional<ChannelMessage>> Receive(Deadline deadline) override {
    const auto take = [this] { return is_woken_.exchange(false, std::memory_order_acq_rel); };
    (void)signal_.Wait(take, deadline);
    return std::optional<ChannelMessage>();
  }
  void Wake() override {
    is_woken_.store(true, std::memory_order_release);
    signal_.Notify();
  }

 private:
  WakeSignal signal_;
  std::atomic<bool> is_woken_{false};
};

}  // namespace rabit

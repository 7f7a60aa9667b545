// VirtualNetwork: the control channels of a simulated job.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "testing/simulator/dice.h"
#include "testing/simulator/virtual_time.h"
#include "transport/channel.h"
#include "transport/rank_tree.h"

namespace rabit::testing {

// Messages of a link take a random time, and keep their order.  A channel never waits: Receive says
// at once that there is nothing, and notes until when its caller would have waited.  One thread.
class VirtualNetwork {
 public:
  struct Options {
    int delay_us_max = 200;    // of one message
    int notice_us_max = 5000;  // until a lost peer is reported
  };

  // All outlive it; `on_arrival` is called when there is something for a rank to receive.
  VirtualNetwork(VirtualTime& time, Dice& dice, const RankTree& tree, const Options& options,
                 std::function<void(int rank)> on_arrival);

  // Once per rank.  The network outlives its channels.
  std::unique_ptr<Channel> Connect(int rank);
  // Until when the last Receive of `rank` would have waited.
  Deadline waits_until(int rank) const { return ends_[static_cast<size_t>(rank)].waits_until; }

  // `rank` is dead: of what it has sent, some may still arrive; then its neighbours miss it.
  void Kill(int rank);
  // The two lose each other.
  void Cut(int a, int b);
  // `rank` has closed its channel in order.
  void Leave(int rank);
  // What is sent from one to the other from now on takes at least until `when`.
  void Hold(int from, int to, Deadline when) { links_.at({from, to}).held_until = when; }

  struct Traffic {
    uint64_t messages = 0;
    uint64_t bytes = 0;
  };
  const Traffic& sent(int from, int to) const { return links_.at({from, to}).sent; }
  uint64_t messages() const { return messages_; }
  bool is_quiet() const { return on_their_way_ == 0; }  // nothing is left to arrive

 private:
  class VirtualChannel;
  struct Arrival {
    ChannelMessage message;
    Status loss;  // or ok, and the message counts
  };

  struct Link {  // in one direction
    Deadline last_arrival{};
    Deadline held_until{};
    Deadline lost_from = Deadline::max();  // what would arrive later does not
    bool is_missed = false;                // the receiver of this direction knows of the loss
    bool is_closed = false;                // it has seen the end in order
    Traffic sent;
  };
  struct End {
    std::deque<Arrival> inbox;
    Deadline waits_until{};
    bool is_gone = false;
  };

  Status Send(int from, int to, ConstBytes message);
  Result<std::optional<ChannelMessage>> Receive(int rank, Deadline deadline);
  void Lose(int from, int to);
  void Deliver(int to, Arrival arrival);

  VirtualTime& time_;
  Dice& dice_;
  const RankTree& tree_;
  const Options options_;
  const std::function<void(int rank)> on_arrival_;
  std::map<std::pair<int, int>, Link> links_;
  std::vector<End> ends_;
  uint64_t messages_ = 0;
  uint64_t on_their_way_ = 0;
};

}  // namespace rabit::testing

#include "testing/simulator/virtual_network.h"

#include <algorithm>
#include <string>

namespace rabit::testing {

class VirtualNetwork::VirtualChannel final : public Channel {
 public:
  VirtualChannel(VirtualNetwork& network, int rank) : network_(network), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return network_.tree_.size(); }
  Status Send(int peer, ConstBytes message) override { return network_.Send(rank_, peer, message); }
  Result<std::optional<ChannelMessage>> Receive(Deadline deadline) override {
    return network_.Receive(rank_, deadline);
  }
  void Wake() override {}  // nobody ever waits

 private:
  VirtualNetwork& network_;
  const int rank_;
};

VirtualNetwork::VirtualNetwork(VirtualTime& time, Dice& dice, const RankTree& tree,
                               const Options& options, std::function<void(int rank)> on_arrival)
    : time_(time),
      dice_(dice),
      tree_(tree),
      options_(options),
      on_arrival_(std::move(on_arrival)),
      ends_(static_cast<size_t>(tree.size())) {
  for (int rank = 1; rank < tree.size(); ++rank) {
    links_[{rank, tree.parent(rank)}];
    links_[{tree.parent(rank), rank}];
  }
}

std::unique_ptr<Channel> VirtualNetwork::Connect(int rank) {
  return std::make_unique<VirtualChannel>(*this, rank);
}

Status VirtualNetwork::Send(int from, int to, ConstBytes message) {
  if (links_.at({to, from}).is_missed) {
    return PeerLost(to, "rank " + std::to_string(to) + " is lost: nothing can be sent to it");
  }
  if (links_.at({to, from}).is_closed) {
    return Aborted("rank " + std::to_string(to) + " has left the job: nothing can be sent to it");
  }
  ++messages_;
  ++on_their_way_;
  Link& link = links_.at({from, to});
  ++link.sent.messages;
  link.sent.bytes += message.size();
  const Deadline arrival = time_.Now() + dice_.MicrosBelow(options_.delay_us_max);
  link.last_arrival = std::max({arrival, link.last_arrival, link.held_until});
  time_.At(link.last_arrival,
           [this, from, to, payload = std::vector<std::byte>(message.begin(), message.end())] {
             --on_their_way_;
             if (time_.Now() >= links_.at({from, to}).lost_from) return;
             Deliver(to, {{from, payload}, Status()});
           });
  return Status();
}

Result<std::optional<ChannelMessage>> VirtualNetwork::Receive(int rank, Deadline deadline) {
  End& end = ends_[static_cast<size_t>(rank)];
  if (end.inbox.empty()) {
    end.waits_until = deadline;
    return std::optional<ChannelMessage>();
  }
  Arrival arrival = std::move(end.inbox.front());
  end.inbox.pop_front();
  if (!arrival.loss.ok()) return arrival.loss;
  return std::optional(std::move(arrival.message));
}

void VirtualNetwork::Deliver(int to, Arrival arrival) {
  End& end = ends_[static_cast<size_t>(to)];
  if (end.is_gone) return;
  end.inbox.push_back(std::move(arrival));
  on_arrival_(to);
}

void VirtualNetwork::Kill(int rank) {
  ends_[static_cast<size_t>(rank)].is_gone = true;
  for (int peer : tree_.Neighbours(rank)) Lose(rank, peer);
}

void VirtualNetwork::Cut(int a, int b) {
  Lose(a, b);
  Lose(b, a);
}

void VirtualNetwork::Lose(int from, int to) {
  Link& link = links_.at({from, to});
  if (link.lost_from != Deadline::max()) return;
  link.lost_from = time_.Now() + dice_.MicrosBelow(options_.delay_us_max);
  time_.At(link.lost_from + dice_.MicrosBelow(options_.notice_us_max), [this, from, to] {
    Link& lost = links_.at({from, to});
    if (lost.is_closed) return;
    lost.is_missed = true;
    Deliver(to, {{}, PeerLost(from, "rank " + std::to_string(from) + " was lost")});
  });
}

void VirtualNetwork::Leave(int rank) {
  ends_[static_cast<size_t>(rank)].is_gone = true;
  for (int peer : tree_.Neighbours(rank)) {
    if (links_.at({peer, rank}).is_missed) {  // nobody says goodbye to whom he takes for dead
      Lose(rank, peer);
      continue;
    }
    Link& link = links_.at({rank, peer});
    const Deadline arrival = time_.Now() + dice_.MicrosBelow(options_.delay_us_max);
    link.last_arrival = std::max(arrival, link.last_arrival);
    time_.At(link.last_arrival, [this, rank, peer] {
      Link& left = links_.at({rank, peer});
      if (time_.Now() < left.lost_from) left.is_closed = true;
    });
  }
}

}  // namespace rabit::testing

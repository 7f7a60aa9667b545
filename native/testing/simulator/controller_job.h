// ControllerJob: the real controllers of a job's ranks on one thread, in virtual time.  For tests
// of the negotiation alone; a whole job, with its engines and its faults, is a Simulation.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "control/channel_controller.h"
#include "testing/simulator/virtual_network.h"

namespace rabit::testing {

// What ranks announce is on its way until Deliver.  One thread.
class ControllerJob {
 public:
  struct Options {
    ControllerOptions controller;
    int delay_us_max = 1;  // of a message; 1: no time passes, and messages arrive as they were sent
    uint64_t seed = 0;     // of the delays
  };

  explicit ControllerJob(int size) : ControllerJob(RankTree::Star(size), Options()) {}
  explicit ControllerJob(const RankTree& tree) : ControllerJob(tree, Options()) {}
  ControllerJob(const RankTree& tree, const Options& options);

  int size() const { return tree_.size(); }
  int64_t now_us() const { return MicrosOf(time_.Now()); }

  void AddGroup(Group group);  // on every rank
  void RemoveGroup(int rank, GroupId group) { at(rank).controller->RemoveGroup(group); }
  void Announce(int rank, const Announcement& mine);
  void Refuse(int rank, const TensorKey& key, const Status& why);
  void FailBackend(int rank, const BackendFailure& failure) {
    at(rank).controller->FailBackend(failure);
  }
  void Abandon(int rank, const Status& why);
  // The rank is dead, and its neighbours notice.
  void Kill(int rank) { network_.Kill(rank); }

  // Until nothing is on its way any more; returns why rank 0 has failed.
  Status Deliver();
  // What is due in this time happens: messages arrive, and controllers look for stalls.
  void Pass(std::chrono::microseconds time);
  // One event; false: there is none.
  bool PassOne();

  // What `rank` has been told, until the test takes it away.
  std::deque<Agreement>& agreed(int rank) { return at(rank).agreed; }
  const Status& failure(int rank) const { return at(rank).failure; }
  std::vector<std::string> Waiting(int rank) const { return at(rank).controller->Waiting(); }
  std::string StatisticsOf(int rank) const;
  uint64_t Counter(int rank, std::string_view name) const;  // of the statistics

  // Since ForgetTraffic: from all of rank 0's neighbours, and from rank 0 to one of them.
  VirtualNetwork::Traffic ToRoot() const;
  VirtualNetwork::Traffic FromRoot() const;
  void ForgetTraffic();

 private:
  struct Rank {
    std::unique_ptr<Controller> controller;
    std::deque<Agreement> agreed;
    Status failure;
    Deadline next_look = Deadline::max();
  };

  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const Rank& at(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  void Look(int rank);
  VirtualNetwork::Traffic AllToRoot() const;

  const RankTree tree_;
  VirtualTime time_;
  Dice dice_;
  VirtualNetwork network_;
  std::vector<Rank> ranks_;
  VirtualNetwork::Traffic forgotten_to_;
  VirtualNetwork::Traffic forgotten_from_;
};

}  // namespace rabit::testing

// RootController: rank 0's controller; hosts the coordinator and serves the other ranks.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "control/announcer.h"
#include "control/channel_controller.h"
#include "control/coordinator.h"

namespace rabit {

// Engine thread only, except Wake.
class RootController final : public Controller {
 public:
  RootController(std::unique_ptr<Channel> channel, const RankTree& tree,
                 const ControllerOptions& options, const Clock& clock);

  Status Announce(const Announcement& mine) override;
  Result<std::optional<Agreement>> Await(Deadline deadline) override;
  void SetWaiter(Waiter waiter) override { channel_->SetWaiter(waiter); }
  void Wake() override { channel_->Wake(); }
  void Abandon(const Status& why) override;
  void Refuse(const TensorKey& key, const Status& why) override;
  void FailBackend(const BackendFailure& failure) override;
  void Compare(const ScheduleDigest& mine) override;
  void AddGroup(const Group& group) override;
  void RemoveGroup(GroupId group) override;
  void WriteStatistics(JsonWriter& json) const override;
  std::vector<std::string> Waiting() const override;

 private:
  void Flush();
  void SendToAll();
  void OnMessage(int peer, ConstBytes message, int64_t now_us);

  int64_t now_us() const { return MicrosOf(clock_.Now()); }

  const Clock& clock_;
  const std::unique_ptr<Channel> channel_;
  const RankTree tree_;
  std::unordered_map<int, RankSet> below_;  // by child
  mutable Coordinator coordinator_;         // a question may make it note down what it put off
  Announcer announcer_;
  std::deque<Agreement> agreed_;
  std::vector<std::byte> buffer_;  // kept for its memory
  bool has_sent_failure_ = false;
  bool is_busy_ = false;  // said this rank's engine the last time
  uint64_t bytes_sent_ = 0;
  uint64_t bytes_received_ = 0;
  uint64_t messages_sent_ = 0;
  uint64_t messages_received_ = 0;
};

}  // namespace rabit

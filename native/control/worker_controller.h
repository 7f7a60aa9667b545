// WorkerController: every rank's but rank 0's; announces to its parent in the tree, hears what is
// agreed, and does the same for the ranks below it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/announcer.h"
#include "control/channel_controller.h"
#include "control/combiner.h"

namespace rabit {

// Engine thread only, except Wake.
class WorkerController final : public Controller {
 public:
  WorkerController(std::unique_ptr<Channel> channel, const RankTree& tree,
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
  void Say(const AnnounceMessage& message);
  void SendUp();  // what the combiner has
  void Send();    // the buffer to the parent; a failure is Await's to report
  void SendDown(ConstBytes message);
  void TellBelow(const Status& why);
  Result<std::optional<Agreement>> OnMessage(const ChannelMessage& message);
  Result<std::optional<Agreement>> OnParent(ConstBytes message);
  void OnLost(const Status& why);
  void Fail(const Status& why);

  int64_t now_us() const { return MicrosOf(clock_.Now()); }

  const Clock& clock_;
  const std::unique_ptr<Channel> channel_;
  const int parent_;
  const std::vector<int> children_;
  Announcer announcer_;
  std::optional<Combiner> combiner_;  // where there are ranks below
  std::optional<Agreement> local_;
  std::vector<std::string> stalled_;  // rank 0's last report
  std::vector<std::byte> buffer_;     // kept for its memory
  bool has_stopped_ = false;
  Status parent_gone_;  // why nothing can be sent to it
  Status failure_;      // the first
  uint64_t bytes_sent_ = 0;
  uint64_t bytes_received_ = 0;
  uint64_t messages_sent_ = 0;
  uint64_t messages_received_ = 0;
};

}  // namespace rabit

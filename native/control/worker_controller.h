// WorkerController: every rank's but rank 0's; announces to rank 0 and hears what is agreed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "control/announcer.h"
#include "control/channel_controller.h"

namespace rabit {

// Engine thread only, except Wake.
class WorkerController final : public Controller {
 public:
  WorkerController(std::unique_ptr<Channel> channel, const ControllerOptions& options);

  Status Announce(const Announcement& mine) override;
  Result<std::optional<Agreement>> Await(Deadline deadline) override;
  void Wake() override { channel_->Wake(); }
  void Abandon(const Status& why) override;
  void AddGroup(const Group& group) override;
  std::string StatisticsJson() const override;
  std::vector<std::string> Waiting() const override;

 private:
  Status Send();
  Result<std::optional<Agreement>> Handle(ConstBytes message);
  void Fail(const Status& why);

  const std::unique_ptr<Channel> channel_;
  Announcer announcer_;
  std::optional<Agreement> local_;
  std::vector<std::string> stalled_;  // rank 0's last report
  std::vector<std::byte> buffer_;     // kept for its memory
  bool has_stopped_ = false;
  Status failure_;  // the first
  uint64_t bytes_sent_ = 0;
  uint64_t bytes_received_ = 0;
  uint64_t messages_sent_ = 0;
  uint64_t messages_received_ = 0;
};

}  // namespace rabit

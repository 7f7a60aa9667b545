#include "control/worker_controller.h"

#include <iterator>
#include <utility>

#include "control/clock.h"

namespace rabit {
namespace {

constexpr int kReadAheadMax = 1 << 16;

}  // namespace

WorkerController::WorkerController(std::unique_ptr<Channel> channel,
                                   const ControllerOptions& options)
    : channel_(std::move(channel)), announcer_(channel_->rank(), channel_->size()) {
  (void)options;
}

Status WorkerController::Announce(const Announcement& mine) {
  if (!failure_.ok()) return failure_;
  if (has_stopped_) return {};
  const AnnounceMessage message = announcer_.Prepare(mine, NowMicros());
  if (std::optional<Agreement> local = announcer_.TakeLocal()) {
    if (!local_) local_.emplace();
    local_->cycle = local->cycle;
    local_->buckets_done = local->buckets_done;
    std::move(local->rejected.begin(), local->rejected.end(), std::back_inserter(local_->rejected));
  }
  if (!announcer_.HasNews(message)) return {};
  Encode(message, buffer_);
  return Send();
}

// A failed send means that rank 0 is gone; why, it may have told before it went.
Status WorkerController::Send() {
  const Status sent = channel_->Send(0, buffer_);
  if (sent.ok()) {
    bytes_sent_ += buffer_.size();
    ++messages_sent_;
    return sent;
  }
  for (int i = 0; i < kReadAheadMax && failure_.ok() && !has_stopped_; ++i) {
    const auto received = channel_->Receive(Deadline::clock::now());
    if (!received.ok() || !*received) break;
    (void)Handle((*received)->payload);
  }
  if (has_stopped_) return {};
  Fail(sent);
  return failure_;
}

Result<std::optional<Agreement>> WorkerController::Await(Deadline deadline) {
  for (;;) {
    if (local_) return std::exchange(local_, std::nullopt);
    if (!failure_.ok()) return failure_;
    Result<std::optional<ChannelMessage>> received = channel_->Receive(deadline);
    if (!received.ok()) {
      // After the agreed stop rank 0 may leave at any time.
      if (has_stopped_) return std::optional<Agreement>();
      Fail(received.status());
      continue;
    }
    if (!*received) return std::optional<Agreement>();
    bytes_received_ += (*received)->payload.size();
    ++messages_received_;
    Result<std::optional<Agreement>> handled = Handle((*received)->payload);
    if (!handled.ok()) {
      Fail(handled.status());
    } else if (*handled) {
      return handled;
    }
  }
}

// The agreement in a message of rank 0, if it holds one.
Result<std::optional<Agreement>> WorkerController::Handle(ConstBytes message) {
  RABIT_ASSIGN_OR_RETURN(const ControlType type, TypeOf(message));
  if (type == ControlType::kAbort) {
    RABIT_ASSIGN_OR_RETURN(const StatusMessage cause, DecodeStatus(message));
    Fail(cause.why);
    return std::optional<Agreement>();
  }
  if (type == ControlType::kStall) {
    RABIT_ASSIGN_OR_RETURN(stalled_, DecodeStall(message));
    return std::optional<Agreement>();
  }
  if (type != ControlType::kAgree)
    return Internal("rank 0 sent a message that only other ranks send").WithCulprit(0);
  RABIT_ASSIGN_OR_RETURN(AgreeMessage agreed, DecodeAgree(message));
  RABIT_ASSIGN_OR_RETURN(Agreement agreement, announcer_.Apply(std::move(agreed)));
  has_stopped_ = has_stopped_ || agreement.stop;
  if (const auto again = announcer_.TakeResend()) {
    Encode(*again, buffer_);
    (void)Send();  // a failure is kept and reported by the next Await
  }
  return std::optional<Agreement>(std::move(agreement));
}

void WorkerController::Fail(const Status& why) {
  if (failure_.ok()) failure_ = why;
}

void WorkerController::Abandon(const Status& why) {
  if (!failure_.ok() || has_stopped_) return;
  Fail(why);
  EncodeStatus(ControlType::kAbandon, why, buffer_);
  (void)channel_->Send(0, buffer_);  // best effort: rank 0 may be the reason
}

void WorkerController::AddGroup(const Group& group) {
  announcer_.AddGroup(group);
  if (!failure_.ok() || has_stopped_) return;
  Encode(GroupMessage{group.id, group.ranks}, buffer_);
  (void)Send();  // a failure is kept and reported by the next Await
}

std::string WorkerController::StatisticsJson() const {
  return "{" + announcer_.CountersJson() + ",\"bytes_sent\":" + std::to_string(bytes_sent_) +
         ",\"bytes_received\":" + std::to_string(bytes_received_) +
         ",\"messages_sent\":" + std::to_string(messages_sent_) +
         ",\"messages_received\":" + std::to_string(messages_received_) + "}";
}

std::vector<std::string> WorkerController::Waiting() const {
  return stalled_.empty() ? announcer_.Waiting(NowMicros(), 0) : stalled_;
}

}  // namespace rabit

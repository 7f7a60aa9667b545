#include "control/worker_controller.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rabit {
namespace {

// Rank 0 hears of a rank that keeps others waiting after this time at the latest.
constexpr int64_t kHoldUsMax = 100'000;

int64_t HoldUs(const ControllerOptions& options) {
  return std::clamp<int64_t>(options.stall_warning_ms * 1000 / 4, 1, kHoldUsMax);
}

}  // namespace

WorkerController::WorkerController(std::unique_ptr<Channel> channel, const RankTree& tree,
                                   const ControllerOptions& options, const Clock& clock)
    : clock_(clock),
      channel_(std::move(channel)),
      parent_(tree.parent(channel_->rank())),
      children_(tree.children(channel_->rank())),
      announcer_(channel_->rank(), channel_->size()) {
  if (!children_.empty()) combiner_.emplace(channel_->rank(), tree, HoldUs(options));
}

Status WorkerController::Announce(const Announcement& mine) {
  if (!failure_.ok()) return failure_;
  if (has_stopped_) return {};
  const AnnounceMessage message = announcer_.Prepare(mine, now_us());
  if (std::optional<Agreement> local = announcer_.TakeLocal()) {
    // Several rejections may come before the engine looks; Await hands them over as one agreement.
    if (!local_) local_.emplace();
    local_->cycle = local->cycle;
    local_->buckets_done = local->buckets_done;
    std::move(local->rejected.begin(), local->rejected.end(), std::back_inserter(local_->rejected));
  }
  // An announcement without news would wake rank 0 for nothing in every cycle.
  if (announcer_.HasNews(message)) Say(message);
  return {};
}

void WorkerController::Say(const AnnounceMessage& message) {
  if (combiner_) {
    combiner_->OnOwn(message, now_us());
    return SendUp();
  }
  Encode(message, buffer_);
  Send();
}

void WorkerController::SendUp() {
  if (combiner_->TakeUp(buffer_)) Send();
}

// A failed send means that the parent is gone.  Why, or that all have stopped, it may have told
// before it went: Await reads that first.
void WorkerController::Send() {
  const Status sent = channel_->Send(parent_, buffer_);
  if (sent.ok()) {
    bytes_sent_ += buffer_.size();
    ++messages_sent_;
  } else if (parent_gone_.ok()) {
    parent_gone_ = sent;
  }
}

void WorkerController::SendDown(ConstBytes message) {
  for (int child : children_) {
    const Status sent = channel_->Send(child, message);
    if (sent.ok()) {
      bytes_sent_ += message.size();
      ++messages_sent_;
    } else {
      // The loop goes on: the other children must hear of the agreement even if one is gone.
      OnLost(sent.culprit() >= 0 ? sent : Status(sent).WithCulprit(child));
    }
  }
}

// Best effort: they may be the reason.
void WorkerController::TellBelow(const Status& why) {
  if (children_.empty()) return;
  std::vector<std::byte> message;
  EncodeStatus(ControlType::kAbort, why, message);
  for (int child : children_) (void)channel_->Send(child, message);
}

Result<std::optional<Agreement>> WorkerController::Await(Deadline deadline) {
  for (bool is_empty = false;;) {
    // What was refused here is handed over first, and even after a failure, or its caller would get
    // the wrong cause.
    if (local_) return std::exchange(local_, std::nullopt);
    if (!failure_.ok()) return failure_;
    const int64_t tick_us = combiner_ ? combiner_->next_tick_us() : Combiner::kNever;
    const bool is_tick = tick_us != Combiner::kNever && DeadlineAtMicros(tick_us) < deadline;
    const bool has_parent = parent_gone_.ok();
    Result<std::optional<ChannelMessage>> received =
        channel_->Receive(!has_parent ? clock_.Now()
                          : is_tick   ? DeadlineAtMicros(tick_us)
                                      : deadline);
    if (!received.ok()) {
      // After the agreed stop the others may leave at any time.
      if (has_stopped_) return std::optional<Agreement>();
      OnLost(received.status());
      continue;
    }
    if (!*received) {
      // Woken, or at a tick, or both at once: the caller looks again, or a wake would be lost.
      if (is_tick && now_us() >= tick_us) {
        combiner_->OnTick(now_us());
        SendUp();
      }
      if (has_parent || has_stopped_) return std::optional<Agreement>();
      // Once it may be a wake.
      if (std::exchange(is_empty, true)) Fail(parent_gone_);
      continue;
    }
    is_empty = false;
    bytes_received_ += (*received)->payload.size();
    ++messages_received_;
    Result<std::optional<Agreement>> handled = OnMessage(**received);
    if (!handled.ok()) {
      Abandon(handled.status());
    } else if (*handled) {
      return handled;
    }
  }
}

Result<std::optional<Agreement>> WorkerController::OnMessage(const ChannelMessage& message) {
  if (message.peer == parent_) return OnParent(message.payload);
  // After the agreed stop all ranks are through, so what a child still says is about nothing.
  if (has_stopped_) return std::optional<Agreement>();
  RABIT_RETURN_IF_ERROR(combiner_->OnMessage(message.peer, message.payload, now_us()));
  SendUp();
  return std::optional<Agreement>();
}

// The agreement in a message of rank 0, if it holds one.
Result<std::optional<Agreement>> WorkerController::OnParent(ConstBytes message) {
  RABIT_ASSIGN_OR_RETURN(const ControlType type, TypeOf(message));
  if (type == ControlType::kAbort) {
    RABIT_ASSIGN_OR_RETURN(const StatusMessage cause, DecodeStatus(message));
    // The verdict of rank 0 replaces nothing: whichever cause was first here stands.
    Fail(cause.why);
    return std::optional<Agreement>();
  }
  if (type != ControlType::kStall && type != ControlType::kAgree)
    return Internal("rank 0 sent a message that only other ranks send").WithCulprit(0);
  if (type == ControlType::kStall) {
    // The message goes on as it came, so that every level sees the same bytes.
    SendDown(message);
    RABIT_ASSIGN_OR_RETURN(stalled_, DecodeStall(message));
    return std::optional<Agreement>();
  }
  RABIT_ASSIGN_OR_RETURN(AgreeMessage agreed, DecodeAgree(message));
  if (combiner_) {
    // Before the ranks below can answer it.
    combiner_->OnAgreement(agreed);
    SendDown(message);
    SendUp();
  }
  RABIT_ASSIGN_OR_RETURN(Agreement agreement, announcer_.Apply(std::move(agreed)));
  has_stopped_ = has_stopped_ || agreement.stop;
  if (const auto again = announcer_.TakeResend()) Say(*again);
  return std::optional<Agreement>(std::move(agreement));
}

// A rank below is rank 0's business; without the parent this rank hears nothing more.
void WorkerController::OnLost(const Status& why) {
  const bool is_below =
      std::find(children_.begin(), children_.end(), why.culprit()) != children_.end();
  if (!is_below) return Fail(why);
  if (!failure_.ok() || has_stopped_) return;
  EncodeStatus(ControlType::kLost, why, buffer_);
  Send();
}

void WorkerController::Fail(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  // The tree is the only way from rank 0 to the ranks below, so this rank has to inform them.
  TellBelow(why);
}

void WorkerController::Abandon(const Status& why) {
  if (!failure_.ok() || has_stopped_) return;
  failure_ = why;
  TellBelow(GaveUp(channel_->rank(), why));
  EncodeStatus(ControlType::kAbandon, why, buffer_);
  (void)channel_->Send(parent_, buffer_);  // best effort: the parent may be the reason
}

void WorkerController::Refuse(const TensorKey& key, const Status& why) {
  if (!failure_.ok() || has_stopped_) return;
  const std::optional<RefusalMessage> refusal = announcer_.Refuse(key, why);
  if (!refusal) return;
  if (combiner_) {
    combiner_->OnOwnRefusal(*refusal);
    SendUp();
    return;
  }
  Encode(*refusal, buffer_);
  Send();
}

void WorkerController::FailBackend(const BackendFailure& failure) {
  if (!failure_.ok() || has_stopped_) return;
  Encode(failure, buffer_);
  Send();
}

void WorkerController::Compare(const ScheduleDigest& mine) {
  if (!failure_.ok() || has_stopped_) return;
  Encode(mine, buffer_);
  Send();
}

void WorkerController::AddGroup(const Group& group) {
  announcer_.AddGroup(group);
  if (combiner_) combiner_->AddGroup(group);
}

void WorkerController::RemoveGroup(GroupId group) {
  announcer_.RemoveGroup(group);
  if (combiner_) combiner_->RemoveGroup(group);
}

void WorkerController::WriteStatistics(JsonWriter& json) const {
  announcer_.WriteCounters(json);
  json.Member("bytes_sent", bytes_sent_).Member("bytes_received", bytes_received_);
  json.Member("messages_sent", messages_sent_).Member("messages_received", messages_received_);
  channel_->counters().WriteRepairs(json);
}

std::vector<std::string> WorkerController::Waiting() const {
  return stalled_.empty() ? announcer_.Waiting(now_us(), 0) : stalled_;
}

}  // namespace rabit

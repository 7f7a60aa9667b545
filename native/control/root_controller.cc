#include "control/root_controller.h"

#include <algorithm>
#include <utility>

namespace rabit {
namespace {

CoordinatorOptions From(const ControllerOptions& options, int size) {
  CoordinatorOptions from;
  from.size = size;
  from.cache_capacity = options.cache_capacity;
  from.stall_warning_us = std::max<int64_t>(options.stall_warning_ms, 1) * 1000;
  from.second_look_us = options.second_look_ms * 1000;
  from.stall_abort_us = options.stall_abort_ms * 1000;
  from.announces_credit = options.announces_credit;
  return from;
}

}  // namespace

RootController::RootController(std::unique_ptr<Channel> channel, const RankTree& tree,
                               const ControllerOptions& options, const Clock& clock)
    : clock_(clock),
      channel_(std::move(channel)),
      tree_(tree),
      coordinator_(From(options, channel_->size())),
      announcer_(0, channel_->size()) {
  for (int child : tree_.children(0)) below_[child] = RankSet(tree_.Subtree(child));
}

Status RootController::Announce(const Announcement& mine) {
  const int64_t now_us = MicrosOf(clock_.Now());
  const AnnounceMessage message = announcer_.Prepare(mine, now_us);
  if (std::optional<Agreement> local = announcer_.TakeLocal()) agreed_.push_back(std::move(*local));
  const bool has_news = announcer_.HasNews(message);
  if (mine.tunables) coordinator_.OnProposal(*mine.tunables);
  if (has_news) coordinator_.OnAnnounce(0, message, now_us);
  is_busy_ = mine.is_busy;
  if (has_news || mine.tunables) Flush();
  return coordinator_.failure();
}

Result<std::optional<Agreement>> RootController::Await(Deadline deadline) {
  for (;;) {
    if (!agreed_.empty()) {
      std::optional<Agreement> next(std::move(agreed_.front()));
      agreed_.pop_front();
      return next;
    }
    if (!coordinator_.failure().ok()) return coordinator_.failure();
    if (!is_busy_) {  // and has carried out every agreement, or would not ask for the next one
      coordinator_.OnRootQuiet();
      Flush();
      if (!agreed_.empty()) continue;
    }
    const int64_t tick_us = coordinator_.next_tick_us();
    const bool is_tick = tick_us != Coordinator::kNever && DeadlineAtMicros(tick_us) < deadline;
    Result<std::optional<ChannelMessage>> received =
        channel_->Receive(is_tick ? DeadlineAtMicros(tick_us) : deadline);
    const int64_t now_us = MicrosOf(clock_.Now());
    if (!received.ok()) {
      // After the agreed stop the ranks leave one by one, and there is nothing to wait for.
      if (coordinator_.has_stopped()) return std::optional<Agreement>();
      const Status why = received.status();
      if (why.culprit() < 0) return why;
      coordinator_.OnLost(why.culprit(), why);
    } else if (*received) {
      bytes_received_ += (*received)->payload.size();
      ++messages_received_;
      OnMessage((*received)->peer, (*received)->payload, now_us);
    } else {
      // Woken, or at a tick, or both at once: the caller looks again, or a wake would be lost.
      if (is_tick && now_us >= tick_us) coordinator_.OnTick(now_us);
      Flush();
      if (agreed_.empty() && coordinator_.failure().ok()) return std::optional<Agreement>();
    }
    Flush();
  }
}

void RootController::OnMessage(int peer, ConstBytes message, int64_t now_us) {
  const Result<ControlType> type = TypeOf(message);
  const bool is_bundle = type.ok() && *type == ControlType::kBundle;
  if (is_bundle) return coordinator_.OnBundle(peer, below_.at(peer), message, now_us);
  coordinator_.OnMessage(peer, message, now_us);
}

// Sends what the coordinator has decided, and applies it here.
void RootController::Flush() {
  while (std::optional<AgreeMessage> message = coordinator_.TakeAgreement()) {
    if (channel_->size() > 1) {
      Encode(*message, buffer_);
      SendToAll();
    }
    Result<Agreement> agreement = announcer_.Apply(std::move(*message));
    if (agreement.ok()) {
      agreed_.push_back(*std::move(agreement));
    } else {
      coordinator_.OnAbandon(0, agreement.status());
    }
    if (const auto again = announcer_.TakeResend()) coordinator_.OnAnnounce(0, *again, now_us());
  }
  if (const auto report = coordinator_.TakeStallReport()) {
    EncodeStall(*report, buffer_);
    SendToAll();
  }
  if (coordinator_.failure().ok() || has_sent_failure_) return;
  has_sent_failure_ = true;
  EncodeStatus(ControlType::kAbort, coordinator_.failure(), buffer_);
  SendToAll();
}

void RootController::SendToAll() {
  for (int peer : tree_.children(0)) {
    const Status sent = channel_->Send(peer, buffer_);
    if (sent.ok()) {
      bytes_sent_ += buffer_.size();
      ++messages_sent_;
    } else if (sent.code() == Code::kInvalidArgument) {
      coordinator_.OnAbandon(0, sent);  // rank 0 cannot say it, and no connection is at fault
    } else {
      coordinator_.OnLost(peer, sent);
    }
  }
}

void RootController::Abandon(const Status& why) {
  coordinator_.OnAbandon(0, why);
  Flush();
}

void RootController::Refuse(const TensorKey& key, const Status& why) {
  const std::optional<RefusalMessage> refusal = announcer_.Refuse(key, why);
  if (!refusal) return;
  coordinator_.OnRefusal(0, *refusal, now_us());
  Flush();
}

void RootController::FailBackend(const BackendFailure& failure) {
  coordinator_.OnBackendFailed(failure);
  Flush();
}

void RootController::Compare(const ScheduleDigest& mine) {
  coordinator_.OnDigest(0, mine, now_us());
  Flush();
}

void RootController::AddGroup(const Group& group) {
  announcer_.AddGroup(group);
  coordinator_.AddGroup(group);
}

void RootController::RemoveGroup(GroupId group) {
  announcer_.RemoveGroup(group);
  coordinator_.RemoveGroup(group);
}

void RootController::WriteStatistics(JsonWriter& json) const {
  announcer_.WriteCounters(json);
  json.Member("bytes_sent", bytes_sent_).Member("bytes_received", bytes_received_);
  json.Member("messages_sent", messages_sent_).Member("messages_received", messages_received_);
  channel_->counters().WriteRepairs(json);
  coordinator_.skew().Write(coordinator_.records(), json);
}

std::vector<std::string> RootController::Waiting() const {
  return coordinator_.Waiting(now_us(), 0);
}

}  // namespace rabit

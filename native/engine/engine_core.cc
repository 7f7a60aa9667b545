#include "engine/engine_core.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/clock.h"
#include "engine/agreed_result.h"
#include "engine/patience.h"

namespace rabit {

EngineCore::EngineCore(const CoreServices& services, CoreOutput& output)
    : services_(services),
      output_(output),
      routes_(services.router),
      start_limits_(services.scheduler.limits()),
      stall_monitor_(services.logger, services.options.stall_warning_ms,
                     services.options.stall_abort_ms),
      stuck_watch_(services.done, services.running, services.all_lanes, services.has_ordered) {
  if (services.options.chooses_limits && services.rank == 0 && services.size > 1) {
    choice_.emplace(start_limits_);
  }
}

void EngineCore::Submit(Requests batch) {
  for (std::shared_ptr<PendingRequest>& pending : batch) {
    const bool carries = pending->request.is_waited_for && Carries(pending->request);
    // The agreement answers with the token, so that no name is looked up on the way back.
    AddEntry(open_.Add(std::move(pending)), carries);
  }
}

bool EngineCore::Carries(const Request& request) const {
  const std::shared_ptr<const Group> group = services_.groups.FindEver(request.signature.group);
  return group != nullptr && CarriesData(request, services_.options.inline_bytes, *group);
}

void EngineCore::AddEntry(int32_t token, bool carries) {
  const PendingRequest& pending = **open_.Find(token);
  // Assigned, not made anew: the name and the shape find memory there.
  Announcement::Entry entry;
  if (!spare_entries_.empty()) {
    entry = std::move(spare_entries_.back());
    spare_entries_.pop_back();
  }
  entry.name = pending.request.name;
  entry.signature = pending.request.signature;
  entry.token = token;
  entry.data.clear();
  if (carries) CopyInput(pending.request, entry.data);
  if (entry.signature.kind == Kind::kJoin) {
    entry.token = kNoToken;
    // A join is agreed for all ranks at once and has no round of its own, so it has no token
    // either.
    joins_.push_back(open_.Take(token));
  }
  next_.ready.push_back(std::move(entry));
}

void EngineCore::Propose(const Tunables& tunables) {
  const bool has_sizes =
      tunables.partition_bytes >= 0 || tunables.fusion_bytes >= 0 || tunables.credit_bytes >= 0;
  if (choice_ && has_sizes) choice_->Pause();
  Merge(tunables);
}

void EngineCore::ResetTunables() {
  const ScheduleLimits limits = choice_ ? choice_->Resume() : start_limits_;
  Merge({limits.partition_bytes, limits.fusion_bytes, limits.credit_bytes, limits.lanes});
}

void EngineCore::Merge(const Tunables& tunables) {
  if (!next_.tunables) next_.tunables.emplace();
  const auto replace = [](auto& old, auto given) { old = given < 0 ? old : given; };
  replace(next_.tunables->partition_bytes, tunables.partition_bytes);
  replace(next_.tunables->fusion_bytes, tunables.fusion_bytes);
  replace(next_.tunables->credit_bytes, tunables.credit_bytes);
  replace(next_.tunables->lanes, tunables.lanes);
}

void EngineCore::Announce(bool wants_stop, Deadline now) {
  const BucketCounts done = services_.done.counts();
  if (!removed_groups_.empty()) ReleaseGroups(done);
  // What is open does not keep this rank from saying that it stops, or ranks with something open
  // would wait for each other; Coordinator::CheckStop waits until everybody is through.
  next_.is_busy = done != issued_ || !open_.empty() || !in_flight_.empty();
  // What is on the stream of a device counts as done, and a lane waits for it still.
  if (wants_stop && done == issued_ && !services_.running.is_any_lane_active()) {
    next_.wants_stop = true;
  }
  // The doubt asks every rank what it runs; the ranks answer with Compare, at an agreement that all
  // of them reach.
  next_.doubts = stuck_watch_.Look(issued_, now);
  // Nothing to say costs no message: a rank without news is silent for any time, and its liveness
  // is the business of the links.
  if (!HasNews(done)) return;
  // Read once, above: the counts move while this runs, and what is announced must be what is
  // remembered.
  next_.buckets_done = done;
  announced_done_ = done;
  has_announced_stop_ = next_.wants_stop;
  // The controller copies what it needs, so the entries below can be emptied and kept for their
  // memory.
  const Status status = services_.controller.Announce(next_);
  std::move(next_.ready.begin(), next_.ready.end(), std::back_inserter(spare_entries_));
  next_.ready.clear();
  next_.tunables.reset();
  if (!status.ok()) Fail(status);
}

void EngineCore::ReleaseGroups(const BucketCounts& done) {
  std::erase_if(removed_groups_, [&](RemovedGroup& removed) {
    // Nothing of the group is open any more, so its last bucket is among those that were issued up
    // to now; when lanes are through with these, backends may drop it.
    if (!removed.last && !IsInUse(removed.group->id)) removed.last = issued_;
    if (!removed.last || !done.Covers(*removed.last)) return false;
    output_.RemoveGroup(removed.group);
    services_.controller.RemoveGroup(removed.group->id);
    return true;
  });
}

bool EngineCore::IsInUse(GroupId group) const {
  bool is_found = false;
  open_.ForEach([&](const std::shared_ptr<PendingRequest>& pending) {
    is_found = is_found || pending->request.signature.group == group;
  });
  in_flight_.ForEach([&](const InFlight& entry) {
    is_found = is_found || entry.tensor->ready->signature.group == group;
  });
  return is_found;
}

bool EngineCore::HasNews(const BucketCounts& done) const {
  const bool has_progress = !announced_done_.Covers(done);
  const bool returns_credit = wants_credit_ && has_progress;
  const bool starts_stop = next_.wants_stop && !has_announced_stop_;
  // Until all ranks have stopped, the counts of every bucket are news: rank 0 waits for them.
  const bool follows_stop = has_announced_stop_ && (services_.rank == 0 || has_progress);
  return !next_.ready.empty() || next_.tunables.has_value() || next_.doubts || starts_stop ||
         follows_stop || returns_credit;
}

Deadline EngineCore::NextDeadline(Deadline now) const {
  Deadline next = std::min(stall_monitor_.NextCheck(!open_.empty(), now), stuck_watch_.next());
  // A grace must end without a wake of anybody: the peer that would wake this thread may be the one
  // that is lost.
  for (const auto& [scope, grace] : graces_) next = std::min(next, grace.end);
  return next;
}

void EngineCore::Process(Result<std::optional<Agreement>> agreement, Deadline now) {
  if (!agreement.ok()) return Fail(agreement.status());
  if (!agreement->has_value()) return;
  const bool is_stop = (*agreement)->stop;
  // A stop is carried out first: its agreement may hold the last tensors.
  CarryOut(**std::move(agreement), now);
  if (!is_stop || !end_.ok()) return;
  end_ = Aborted("the engine of rank " + std::to_string(services_.rank) +
                 " has stopped: every rank asked for it; start a new engine");
}

void EngineCore::GiveUp(const ForcedEnd& end) {
  // The others hear of it before this rank tears anything down, or they would blame the closed
  // connection.
  services_.controller.Abandon(end.told);
  Fail(end.why);
}

void EngineCore::Watch(const std::vector<Suspicion>& suspicions, Deadline now) {
  for (const Suspicion& each : suspicions) {
    // The first suspicion of a scope counts. The verdict of rank 0 mostly comes within the grace,
    // and names the rank that failed rather than the neighbour that noticed.
    graces_.try_emplace(each.scope, Grace{each.why, now + kSuspicionGrace});
  }
  for (auto& [scope, grace] : graces_) {
    if (now < grace.end) continue;
    if (scope == kWholeEngine) {
      services_.controller.Abandon(grace.suspicion);
      return Fail(grace.suspicion);
    }
    // Nothing of it ends before all ranks know, because an agreement is the same moment on each.
    grace.end = Deadline::max();
    const Status& why = grace.suspicion;
    services_.controller.FailBackend(
        {scope, why.Annotated("backend '" + NameOf(scope) + "' has failed")});
  }
  CheckStall(now);
}

std::string EngineCore::NameOf(BackendId backend) const {
  const std::string_view name = services_.router.NameOf(backend);
  return name.empty() ? std::to_string(backend) : std::string(name);
}

void EngineCore::CheckStall(Deadline now) {
  if (open_.empty() || services_.options.stall_warning_ms <= 0) return;
  // Looking at every tensor is dear; nothing can be reported before the warning time is over.
  if (now < next_stall_check_) return;
  next_stall_check_ = stall_monitor_.NextCheck(true, now);
  int64_t oldest_ns = NanosOf(now);
  open_.ForEach([&](const std::shared_ptr<PendingRequest>& pending) {
    oldest_ns = std::min(oldest_ns, pending->submitted_ns);
  });
  stall_monitor_.Check(services_.controller, oldest_ns, open_.size(), now);
  services_.record.Set(Record::kStallReports, stall_monitor_.reports());
}

void EngineCore::Fail(const Status& why) {
  // The loop sees it after this step, and ends lanes and backends; nothing is torn down here, in
  // the middle of a step.
  end_ = why;
  has_failed_ = true;
}

void EngineCore::FinishOpen(const Status& why) {
  // Nothing is announced any more: the controller may have lost its channel, and rank 0 has ended
  // as well.
  next_.ready.clear();
  // Callers are notified after the step, when the mutex is free: a callback may submit again.
  Requests open = std::exchange(joins_, {});
  const auto add = [&open](const std::shared_ptr<PendingRequest>& pending) {
    if (pending != nullptr) open.push_back(pending);
  };
  open_.ForEach(add);
  in_flight_.ForEach([&](const InFlight& entry) { add(entry.tensor->request); });
  open_.Clear();
  in_flight_.Clear();
  for (const std::shared_ptr<PendingRequest>& pending : open) {
    pending->SetError(why.Annotated(pending->Describe(services_.rank)));
    output_.Drop(pending);
  }
}

bool EngineCore::is_idle() const {
  return open_.empty() && in_flight_.empty() && joins_.empty() && graces_.empty();
}

void EngineCore::WriteStatistics(JsonWriter& json) const {
  const ScheduleLimits& limits = services_.scheduler.limits();
  json.Member("stall_reports", stall_monitor_.reports()).Key("tunables").BeginObject();
  json.Member("partition_bytes", limits.partition_bytes);
  json.Member("fusion_bytes", limits.fusion_bytes).Member("credit_bytes", limits.credit_bytes);
  json.Member("lanes", limits.lanes).Member("changes", tunings_).EndObject();
  json.Key("failed_backends").BeginObject();
  for (const BackendFailure& each : failed_backends_) {
    json.Member(NameOf(each.backend), each.why.message());
  }
  json.EndObject();
  services_.scheduler.WriteStatistics(json);
  json.Key("controller").BeginObject();
  services_.controller.WriteStatistics(json);
  json.EndObject();
}

}  // namespace rabit

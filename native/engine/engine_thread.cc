#include "engine/engine_thread.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/json_writer.h"
#include "base/kind.h"
#include "engine/agreed_result.h"
#include "engine/content_hash.h"
#include "engine/load.h"
#include "engine/scheduled_from.h"

namespace rabit {
namespace {

// How long the control plane may take to name the culprit of what a lane only suspects.
constexpr auto kGrace = std::chrono::milliseconds(300);

std::string RowOf(const ReadyTensor& ready) {
  return TimelineRow(ready.signature.kind, ready.name);
}

std::string UpperName(Kind kind) {
  std::string name(Name(kind));
  for (char& c : name) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

}  // namespace

EngineThread::EngineThread(std::shared_ptr<EngineState> state)
    : state_(std::move(state)),
      stall_monitor_(state_->logger, state_->parts.options.stall_warning_ms),
      stuck_watch_(*state_),
      routes_(*state_->parts.router),
      start_limits_(state_->parts.scheduler->limits()) {
  const EngineParts& parts = state_->parts;
  if (parts.options.chooses_limits && parts.rank == 0 && parts.size > 1) {
    choice_.emplace(start_limits_);
  }
}

void EngineThread::Run() {
  ::pthread_setname_np(::pthread_self(), "rabit-engine");
  step_mutex_.Lock();
  for (int32_t i = 0; i < state_->parts.options.lanes; ++i) {
    lanes_.push_back(std::make_unique<Lane>(state_));
  }
  is_running_ = true;
  while (is_running_ && Step(Deadline::max())) {
    const bool parks = CanPark();
    if (!parks && completed_.empty()) continue;
    const Requests completed = std::exchange(completed_, {});
    step_mutex_.Unlock();
    Notify(completed);
    if (parks) Park();
    step_mutex_.Lock();
  }
  is_running_ = false;
  const Requests completed = std::exchange(completed_, {});
  step_mutex_.Unlock();
  Notify(completed);
  End();
  has_ended_.store(true);
  ended_.Notify();
}

void EngineThread::End() {
  MutexLock lock(step_mutex_);
  commands_.Close();
  RunCommands();  // whoever waits for one sees the verdict
  for (auto& lane : lanes_) lane->Close();
  // Failed lanes return at once, because their backends are aborted.
  const Deadline deadline = After(std::chrono::milliseconds(1500));
  for (auto& lane : lanes_) {
    if (!lane->Join(deadline)) state_->logger.Error("a lane does not end; it is left behind");
  }
  last_json_ = MakeControllerJson();
}

// A callback may ask for what needs the steps, and so is made when they are free.
void EngineThread::Drop(const std::shared_ptr<PendingRequest>& pending) {
  if (state_->handles.DropQuietly(pending)) completed_.push_back(pending);
}

void EngineThread::Notify(const Requests& completed) {
  for (const std::shared_ptr<PendingRequest>& pending : completed) HandleTable::Notify(*pending);
}

void EngineThread::Park() {
  for (;;) {
    const int64_t until_ns = last_drive_ns_.load() + HandBackNs();
    if (NowNs() >= until_ns) return;
    const Deadline until{std::chrono::nanoseconds(until_ns)};
    if (state_->step_needed.Wait([this] { return state_->needs_step.load(); }, until)) return;
  }
}

bool EngineThread::CanPark() const {
  return open_.empty() && in_flight_.empty() && joins_.empty() && grace_for_.ok() &&
         !state_->wants_stop.load() && !state_->needs_credit.load();
}

bool EngineThread::Step(Deadline deadline) {
  state_->needs_step.store(false);
  // Read before the queues: what comes before a stop is announced before it.
  wants_stop_ = state_->wants_stop.load();
  // In this order, what was submitted after a command is announced after it.
  TakeSubmissions();
  RunCommands();
  const Deadline began = kSteadyClock.Now();
  if (Status status = AnnounceIfNeeded(began); !status.ok()) {
    Fail(status);
    return false;
  }
  Result<std::optional<Agreement>> agreement =
      state_->parts.controller->Await(std::min(NextDeadline(began), deadline));
  if (!agreement.ok()) {
    Fail(agreement.status());
    return false;
  }
  const Deadline now = kSteadyClock.Now();
  if (agreement->has_value()) {
    const bool is_stop = (*agreement)->stop;
    Process(**std::move(agreement), now);
    if (state_->failure.has_verdict()) return false;
    if (is_stop) {
      const std::string rank = std::to_string(state_->parts.rank);
      const Status stopped = Aborted("the engine of rank " + rank +
                                     " has stopped: every rank asked for it; start a new engine");
      state_->submissions.Close(stopped);
      FinishOpen(stopped);
      return false;
    }
  }
  if (FailIfSuspected(now)) return false;
  CheckStall(now);
  return true;
}

void EngineThread::RunCommands() {
  for (std::function<void()>& command : commands_.TakeAll()) command();
}

bool EngineThread::RunCommand(std::function<void()> command, Deadline deadline) {
  struct Call {
    WakeSignal finished;
    std::atomic<bool> is_done{false};
  };
  auto call = std::make_shared<Call>();
  const bool is_taken = commands_.Push([call, command = std::move(command)] {
    command();
    call->is_done.store(true);
    call->finished.Notify();
  });
  if (!is_taken) return false;
  state_->Wake();
  return call->finished.Wait([&] { return call->is_done.load(); }, deadline);
}

bool EngineThread::Propose(const Tunables& tunables) {
  const bool has_sizes =
      tunables.partition_bytes >= 0 || tunables.fusion_bytes >= 0 || tunables.credit_bytes >= 0;
  const bool is_taken = commands_.Push([this, tunables, has_sizes]() RABIT_REQUIRES(step_mutex_) {
    if (choice_ && has_sizes) choice_->Pause();
    Merge(tunables);
  });
  state_->Wake();
  return is_taken;
}

bool EngineThread::ResetTunables() {
  const bool is_taken = commands_.Push([this]() RABIT_REQUIRES(step_mutex_) {
    const ScheduleLimits limits = choice_ ? choice_->Resume() : start_limits_;
    Merge({limits.partition_bytes, limits.fusion_bytes, limits.credit_bytes, limits.lanes});
  });
  state_->Wake();
  return is_taken;
}

void EngineThread::Refuse(const TensorKey& key, const Status& why) {
  // A thread that has ended has failed every round, or all ranks have stopped.
  (void)commands_.Push([this, key, why] { state_->parts.controller->Refuse(key, why); });
  state_->Wake();
}

void EngineThread::Merge(const Tunables& tunables) {
  if (!next_.tunables) next_.tunables.emplace();
  const auto replace = [](auto& old, auto given) { old = given < 0 ? old : given; };
  replace(next_.tunables->partition_bytes, tunables.partition_bytes);
  replace(next_.tunables->fusion_bytes, tunables.fusion_bytes);
  replace(next_.tunables->credit_bytes, tunables.credit_bytes);
  replace(next_.tunables->lanes, tunables.lanes);
}

void EngineThread::ObserveRound(const ReadyTensor& ready, int64_t count) {
  const Signature& agreed = ready.signature;
  if (agreed.kind != Kind::kAllreduce) return;
  const auto bytes = count * static_cast<int64_t>(SizeOf(agreed.dtype));
  if (!choice_->OnAgreed(static_cast<size_t>(ready.id), bytes, agreed.priority)) return;
  const auto limits = choice_->OnRound(state_->statistics.link_totals());
  if (limits) Merge({limits->partition_bytes, limits->fusion_bytes, limits->credit_bytes, -1});
}

void EngineThread::ForceStop(const ForcedEnd& end) {
  {
    MutexLock lock(force_mutex_);
    if (forced_.why.ok()) forced_ = end;
  }
  state_->Wake();
}

bool EngineThread::WaitEnded(Deadline deadline) {
  return ended_.Wait([this] { return has_ended_.load(); }, deadline);
}

std::string EngineThread::ControllerJson(Deadline deadline) {
  // Nobody does the steps, or this is the callback of a request that the engine thread has
  // finished: a command would wait for this very thread.
  if (step_mutex_.TryLock()) {
    std::string json = is_running_ ? MakeControllerJson() : std::string();
    step_mutex_.Unlock();
    if (!json.empty()) return json;
  }
  // The command may run after this function has given up waiting.
  auto json = std::make_shared<std::string>();
  const bool is_done = RunCommand(
      [json, this]() RABIT_REQUIRES(step_mutex_) { *json = MakeControllerJson(); }, deadline);
  if (is_done) return *json;
  return has_ended_.load() ? last_json_ : std::string();
}

std::string EngineThread::MakeControllerJson() const {
  const ScheduleLimits& limits = state_->parts.scheduler->limits();
  JsonWriter json;
  json.Member("stall_reports", stall_monitor_.reports());
  json.Member("hand_back_us", HandBackNs() / 1000).Key("tunables").BeginObject();
  json.Member("partition_bytes", limits.partition_bytes);
  json.Member("fusion_bytes", limits.fusion_bytes).Member("credit_bytes", limits.credit_bytes);
  json.Member("lanes", limits.lanes).Member("changes", tunings_).EndObject();
  json.Key("controller").BeginObject();
  state_->parts.controller->WriteStatistics(json);
  return json.EndObject().Take();
}

void EngineThread::TakeSubmissions() {
  for (std::shared_ptr<PendingRequest>& pending : state_->submissions.TakeAll()) {
    const uint64_t version = pending->version;
    const bool carries = CarriesData(pending->request, state_->parts.options.inline_bytes);
    const int32_t token = open_.Add(std::move(pending));
    // What follows an entry stays behind it: after a join, nothing may be announced.
    if (!carries && next_.ready.empty() && state_->parts.controller->Repeat(version, token)) {
      has_repeated_ = true;
    } else {
      AnnounceInFull(token, carries);
    }
  }
}

void EngineThread::AnnounceInFull(int32_t token, bool carries) {
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
  entry.version = pending.version;
  entry.data.clear();
  if (carries) CopyInput(pending.request, entry.data);
  if (entry.signature.kind == Kind::kJoin) {
    entry.token = kNoToken;
    joins_.push_back(open_.Take(token));
  }
  next_.ready.push_back(std::move(entry));
}

Status EngineThread::AnnounceIfNeeded(Deadline now) {
  const uint64_t done = state_->done.count();
  // What is open does not keep this rank from saying that it stops, or ranks with something open
  // would wait for each other; Coordinator::CheckStop waits until everybody is through.
  next_.is_busy = done != issued_ || !open_.empty() || !in_flight_.empty();
  if (wants_stop_ && done == issued_) next_.wants_stop = true;
  const bool returns_credit = state_->needs_credit.load() && done > announced_done_;
  const bool starts_stop = next_.wants_stop && !has_announced_stop_;
  const bool follows_stop =
      has_announced_stop_ && (state_->parts.rank == 0 || done > announced_done_);
  next_.doubts = stuck_watch_.Look(issued_, now);
  const bool has_news =
      !next_.ready.empty() || has_repeated_ || next_.tunables.has_value() || next_.doubts;
  if (!has_news && !starts_stop && !follows_stop && !returns_credit) {
    return Status();
  }
  next_.buckets_done = done;
  announced_done_ = done;
  has_announced_stop_ = next_.wants_stop;
  Status status = state_->parts.controller->Announce(next_);
  std::move(next_.ready.begin(), next_.ready.end(), std::back_inserter(spare_entries_));
  next_.ready.clear();
  next_.tunables.reset();
  has_repeated_ = false;
  return status;
}

Deadline EngineThread::NextDeadline(Deadline now) const {
  return std::min({stall_monitor_.NextCheck(!open_.empty(), now), grace_end_, stuck_watch_.next()});
}

bool EngineThread::FailIfSuspected(Deadline now) {
  ForcedEnd forced;
  {
    MutexLock lock(force_mutex_);
    forced = forced_;
  }
  if (!forced.why.ok()) {
    state_->parts.controller->Abandon(forced.told);
    Fail(forced.why);
    return true;
  }
  if (grace_for_.ok()) {
    grace_for_ = state_->failure.suspicion();
    if (!grace_for_.ok()) grace_end_ = now + kGrace;
  }
  if (grace_for_.ok() || now < grace_end_) return false;
  state_->parts.controller->Abandon(grace_for_);
  Fail(grace_for_);
  return true;
}

void EngineThread::CheckStall(Deadline now) {
  if (open_.empty() || state_->parts.options.stall_warning_ms <= 0) return;
  int64_t oldest_ns = NanosOf(now);
  // Looking at every tensor is dear; nothing can be reported before the warning time is over.
  if (now < next_stall_check_) return;
  next_stall_check_ = stall_monitor_.NextCheck(true, now);
  open_.ForEach([&](const std::shared_ptr<PendingRequest>& pending) {
    oldest_ns = std::min(oldest_ns, pending->submitted_ns);
  });
  stall_monitor_.Check(*state_->parts.controller, oldest_ns, open_.size(), now);
}

void EngineThread::Process(Agreement agreement, Deadline now) {
  state_->timeline.MarkCycle(agreement.cycle);
  if (agreement.tunables) {
    if (Status status = ApplyTunables(*agreement.tunables); !status.ok()) {
      state_->parts.controller->Abandon(status);
      return Fail(status);
    }
  }
  for (const Rejection& rejection : agreement.rejected) Reject(rejection);
  const ScheduledTensors scheduled = Accept(agreement, NanosOf(now));
  if (negotiated_ > 0) state_->statistics.AddNegotiation(negotiated_, negotiation_ns_);
  negotiated_ = negotiation_ns_ = 0;
  if (agreement.last_joined >= 0) FinishJoin(agreement.last_joined);
  std::vector<Bucket> buckets = state_->parts.scheduler->Advance(scheduled, agreement.buckets_done);
  state_->needs_credit.store(state_->parts.scheduler->backlog() > 0);
  for (Bucket& bucket : buckets) Dispatch(std::move(bucket));
  // Every rank is at this agreement now: what they have issued by it must be the same.
  if (!agreement.compares) return;
  stuck_watch_.OnCompared(now);
  state_->parts.controller->Compare({agreement.cycle, issued_, chain_, state_->running.List()});
}

// The scheduler is a replicated state machine, and an agreement is the same event on every rank:
// all cut and join alike from here on, whatever each has in flight.
Status EngineThread::ApplyTunables(const Tunables& tunables) {
  const auto started = static_cast<int32_t>(lanes_.size());
  if (tunables.lanes > started) {
    return Mismatch("rank 0 chose " + std::to_string(tunables.lanes) + " lanes, and rank " +
                    std::to_string(state_->parts.rank) + " has started " + std::to_string(started) +
                    ": give every rank the same lanes")
        .WithCulprit(state_->parts.rank);
  }
  ScheduleLimits limits = state_->parts.scheduler->limits();
  if (tunables.partition_bytes >= 0) limits.partition_bytes = tunables.partition_bytes;
  if (tunables.fusion_bytes >= 0) limits.fusion_bytes = tunables.fusion_bytes;
  if (tunables.credit_bytes >= 0) limits.credit_bytes = tunables.credit_bytes;
  if (tunables.lanes > 0) limits.lanes = tunables.lanes;
  state_->parts.scheduler->SetLimits(limits);
  ++tunings_;
  return Status();
}

void EngineThread::Reject(const Rejection& rejection) {
  std::shared_ptr<PendingRequest> pending = TakeOpen(rejection.token);
  if (pending == nullptr) return;
  state_->statistics.AddRejected(1);
  pending->SetError(rejection.why);
  Drop(pending);
}

ScheduledTensors EngineThread::Accept(const Agreement& agreement, int64_t now_ns) {
  const ReadyTensors& ready = agreement.ready;
  if (ready.empty()) return {};
  // Where nothing is in flight, slots are given out from 0 on, as in the agreement before if that
  // found nothing in flight either; then what the scheduler was told holds again.
  const bool starts_empty = in_flight_.empty();
  if (starts_empty) in_flight_.Clear();
  const bool is_repeated = starts_empty && ready.IsSameAs(last_ready_);
  const auto accepted = std::make_shared<AgreedTensors>();
  accepted->ready = ready;
  accepted->tensors.reserve(ready.size());
  std::vector<ScheduledTensor> scheduled;
  if (!is_repeated) scheduled.reserve(ready.size());
  for (size_t i = 0; i < ready.size(); ++i) {
    const ReadyTensor& tensor = ready[i];
    const int32_t token = agreement.tokens[i];
    if (!is_repeated && tensor.signature.kind == Kind::kVote) {
      FinishVote(tensor, token, now_ns);
      continue;
    }
    if (!is_repeated && !tensor.data.empty()) {
      FinishCarried(tensor, token, now_ns);
      continue;
    }
    AgreedTensor& agreed = accepted->tensors.emplace_back();
    agreed = {&tensor, TakeOpen(token), now_ns};
    if (agreed.request == nullptr) serves_others_.store(true);
    if (agreed.request != nullptr) NoteNegotiated(tensor, *agreed.request, now_ns);
    const int64_t count = is_repeated ? last_scheduled_[i].count : AgreedCount(tensor);
    if (choice_) ObserveRound(tensor, count);
    // Not the agreed id, which may belong to another tensor before the scheduler has issued this
    // one.
    const int32_t slot =
        in_flight_.Add({std::shared_ptr<const AgreedTensor>(accepted, &agreed), count, false});
    if (!is_repeated)
      scheduled.push_back(ScheduledFrom(tensor, slot, count, CutMultipleOf(tensor)));
  }
  if (is_repeated) return last_scheduled_;
  const bool can_repeat = starts_empty && scheduled.size() == ready.size();
  last_ready_ = can_repeat ? ready : ReadyTensors();
  last_scheduled_ = ScheduledTensors(std::move(scheduled));
  return last_scheduled_;
}

// Ranks that take no part cut as well, so that they count the same buckets.
int64_t EngineThread::CutMultipleOf(const ReadyTensor& ready) const {
  const std::string& spec = ready.signature.codec;
  if (spec.empty()) return 1;
  const Result<const Codec*> codec = state_->parts.codecs->Find(spec);
  // Whoever submitted it has the codec, and all ranks run one version.
  RABIT_CHECK(codec.ok(), "an agreed codec is unknown on this rank");
  return (*codec)->block();
}

void EngineThread::NoteNegotiated(const ReadyTensor& ready, const PendingRequest& request,
                                  int64_t now_ns) {
  if (&request == driven_) is_driven_agreed_ = true;
  ++negotiated_;
  negotiation_ns_ += now_ns - request.submitted_ns;
  if (!state_->timeline.is_active()) return;
  state_->timeline.Span(RowOf(ready), "NEGOTIATE_" + UpperName(ready.signature.kind),
                        request.submitted_ns, now_ns);
}

// The agreement is the result: nothing is scheduled and no lane takes part.
void EngineThread::FinishVote(const ReadyTensor& ready, int32_t token, int64_t now_ns) {
  const std::shared_ptr<PendingRequest> pending = TakeOpen(token);
  if (pending == nullptr) return;  // of a group without this rank
  state_->statistics.AddNegotiation(1, now_ns - pending->submitted_ns);
  SetResult(*pending, ready.extents[0]);
  Drop(pending);
}

// The same, of an allreduce whose data came with the announcements.
void EngineThread::FinishCarried(const ReadyTensor& ready, int32_t token, int64_t now_ns) {
  const std::shared_ptr<PendingRequest> pending = TakeOpen(token);
  if (pending == nullptr) return;  // of a group without this rank
  NoteNegotiated(ready, *pending, now_ns);
  state_->statistics.AddCarried(static_cast<int64_t>(ready.data.size()));
  SetResult(*pending, ready, state_->groups.FindEver(ready.signature.group)->size());
  if (state_->timeline.is_active()) {
    state_->timeline.Span(
        RowOf(ready), UpperName(ready.signature.kind), now_ns, NowNs(),
        "\"algorithm\":\"inline\",\"bytes\":" + std::to_string(ready.data.size()));
  }
  Drop(pending);
}

void EngineThread::FinishJoin(int last_joined) {
  for (const std::shared_ptr<PendingRequest>& join : joins_) {
    SetResult(*join, static_cast<int32_t>(last_joined));
    Drop(join);
  }
  joins_.clear();
}

void EngineThread::Dispatch(Bucket bucket) {
  BucketJob job;
  job.group = state_->groups.FindEver(bucket.group);
  // Members agree to nothing before they know their group, but others may be faster than this rank
  // in adding one that it does not belong to.
  const bool is_member = job.group != nullptr && job.group->is_member();
  bool has_request = false;
  job.items.reserve(bucket.partitions.size());
  for (const Partition& partition : bucket.partitions) {
    InFlight* const entry = in_flight_.Find(partition.tensor);
    RABIT_CHECK(entry != nullptr, "a bucket holds a tensor that was never agreed");
    entry->left -= partition.count;
    entry->has_last = entry->has_last || partition.is_last;
    PendingRequest* const request = entry->tensor->request.get();
    has_request = has_request || request != nullptr;
    if (entry->has_last && entry->left == 0) {
      // This thread's hold becomes that of the last partition.
      job.items.push_back({partition, in_flight_.Take(partition.tensor).tensor});
    } else {
      if (request != nullptr) request->AddHold();
      job.items.push_back({partition, entry->tensor});
    }
  }
  const bool is_pair = TraitsOf(bucket.kind).is_pair;
  const uint64_t id = bucket.id;
  const auto lane = static_cast<size_t>(bucket.lane);
  job.bucket = std::move(bucket);
  job.hash = ContentHash(job);
  chain_ = MixHash(chain_, job.hash);
  ++issued_;
  // Ranks outside of the group may not know it yet, and have nothing to run.
  if (is_member) {
    job.load = LoadOf(job);
    job.route = routes_.Of(job.bucket, job.load, *job.group);
  }
  if (!is_member || (is_pair && !has_request)) {
    for (const BucketItem& item : job.items) {
      if (item.request() != nullptr) Drop(item.tensor->request);
    }
    state_->done.MarkDone(id);  // nothing to do on this rank
    return;
  }
  if (!TryOwn(job)) lanes_[lane]->Push(std::move(job));
}

std::shared_ptr<PendingRequest> EngineThread::TakeOpen(int32_t token) {
  if (open_.Find(token) == nullptr) return nullptr;
  return open_.Take(token);
}

void EngineThread::Fail(const Status& why) {
  state_->submissions.Close(why);
  for (auto& backend : state_->parts.backends) backend->Abort(why);
  state_->failure.Settle(why);
  FinishOpen(why);
}

void EngineThread::FinishOpen(const Status& why) {
  TakeSubmissions();
  next_.ready.clear();
  Requests open = std::exchange(joins_, {});
  const auto add = [&open](const std::shared_ptr<PendingRequest>& pending) {
    if (pending != nullptr) open.push_back(pending);
  };
  open_.ForEach(add);
  in_flight_.ForEach([&](const InFlight& entry) { add(entry.tensor->request); });
  open_.Clear();
  in_flight_.Clear();
  for (const std::shared_ptr<PendingRequest>& pending : open) {
    pending->SetError(
        Status(why.code(), pending->Describe(state_->parts.rank) + ": " + why.message())
            .WithCulprit(why.culprit()));
    Drop(pending);
  }
}

}  // namespace rabit

#include "engine/engine_loop.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "engine/patience.h"

namespace rabit {

EngineLoop::EngineLoop(std::shared_ptr<EngineState> state)
    : state_(std::move(state)), core_(state_->core_services(), *this) {}

void EngineLoop::Run() {
  ::pthread_setname_np(::pthread_self(), "rabit-engine");
  // The holder does the steps: this thread, or a caller that waits (Drive). Everything of the core
  // is under it.
  step_mutex_.Lock();
  const EngineParts& parts = state_->parts;
  for (int32_t i = 0; i < parts.all_lanes(); ++i) {
    const std::string& name = parts.scheduler->class_name(i / parts.options.lanes);
    // A lane starts its thread with the first job: most jobs use one class of lanes, and callers
    // that drive use none.
    lanes_.push_back(std::make_unique<Lane>(state_, name));
  }
  is_running_ = true;
  // The mutex is held even while the step sleeps in Await; a caller that wants the steps wakes this
  // thread first.
  while (is_running_ && Step(kSteadyClock.Now(), Deadline::max())) {
    const bool parks = CanPark();
    if (!parks && completed_.empty()) continue;
    const Requests completed = std::exchange(completed_, {});
    step_mutex_.Unlock();
    // Without the mutex: callbacks are the program's, and may call the engine.
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

void EngineLoop::End() {
  MutexLock lock(step_mutex_);
  // No command is accepted after this, so none is forgotten.
  commands_.Close();
  RunCommands();  // whoever waits for one sees the verdict
  for (auto& lane : lanes_) lane->Close();
  const Deadline deadline = After(kLanesEndWithin);
  for (auto& lane : lanes_) {
    // A lane may be in a call of a library that never returns; the process goes on without it.
    if (!lane->Join(deadline)) state_->logger.Error("a lane does not end; it is left behind");
  }
  // Nobody writes it afterwards: has_ended_ is set behind it, and readers look at that first.
  last_json_ = MakeJson(core_);
}

void EngineLoop::Run(BucketJob job) {
  if (TryOwn(job)) return;
  Lane& lane = *lanes_[static_cast<size_t>(job.bucket.lane)];
  lane.Push(std::move(job));
}

Status EngineLoop::EndBackend(const BackendFailure& failure) {
  bool is_found = false;
  bool is_alone = true;
  for (size_t i = 0; i < state_->parts.backends.size(); ++i) {
    if (state_->ScopeOf(static_cast<int32_t>(i)) != failure.backend) continue;
    is_found = true;
    is_alone = state_->failure.SettleBackend(failure.backend, failure.why) && is_alone;
    // After the verdict is settled, so that a lane whose call ends now finds the cause.
    state_->parts.backends[i]->Abort(failure.why);
  }
  if (is_found && is_alone) return Status();
  const std::string why = is_found ? "an operation on this rank continues by another backend after it"
                                   : "no other backend continues without it";
  return Status(failure.why.code(), failure.why.message() + "; " + why)
      .WithCulprit(failure.why.culprit());
}

// A callback may ask for what needs the steps, and so is made when they are free.
void EngineLoop::Drop(const std::shared_ptr<PendingRequest>& pending) {
  if (state_->handles.DropQuietly(pending)) completed_.push_back(pending);
}

void EngineLoop::RemoveGroup(const std::shared_ptr<const Group>& group) {
  // This is the engine thread, or a caller that drives, and it holds the step mutex: a backend that
  // waited for the network here would stop the negotiation of all ranks.
  for (auto& backend : state_->parts.backends) backend->RemoveGroup(*group);
  // FindEver is null from here on; the control plane keeps its own few bytes of the group, since a
  // rank that is behind may still name it.
  state_->groups.Forget(group->id);
}

void EngineLoop::Notify(const Requests& completed) {
  for (const std::shared_ptr<PendingRequest>& pending : completed) HandleTable::Notify(*pending);
}

void EngineLoop::Park() {
  for (;;) {
    // Both values move while this thread sleeps, so they are read again after each sleep.
    const int64_t until_ns = last_drive_ns_.load() + HandBackNs();
    if (NowNs() >= until_ns) return;
    const Deadline until{std::chrono::nanoseconds(until_ns)};
    // A submission that is not quiet, a command, and a suspicion set needs_step; a caller that
    // drives does not, and that is the point of parking.
    if (state_->step_needed.Wait([this] { return state_->needs_step.load(); }, until)) return;
  }
}

bool EngineLoop::CanPark() const {
  // With something open, this thread has to stay in Await: an agreement may come at any moment.
  return core_.is_idle() && !state_->wants_stop.load() && !state_->needs_credit.load();
}

bool EngineLoop::Step(Deadline now, Deadline deadline) {
  // Before anything is read: a wake that comes during the step makes the next one.
  state_->needs_step.store(false);
  // Read before the queues: what comes before a stop is announced before it.
  const bool wants_stop = state_->wants_stop.load();
  // In this order, what was submitted after a command is announced after it.
  SubmissionQueue::Batch batch = state_->submissions.TakeAll();
  if (!batch.empty() && now - std::exchange(last_taken_, now) < kRowGap) nap_end_ = now + kNap;
  core_.Submit(std::move(batch));
  RunCommands();
  core_.Announce(wants_stop, now);
  if (core_.end().ok()) {
    Deadline until = std::min(core_.NextDeadline(now), deadline);
    const bool naps = now < nap_end_ && driven_ == nullptr && state_->submissions.StartNap();
    if (naps) until = std::min(until, nap_end_);
    // The only place where a step sleeps.
    auto agreement = state_->parts.controller->Await(until);
    if (naps && state_->submissions.EndNap()) state_->needs_step.store(true);
    const Deadline then = kSteadyClock.Now();
    core_.Process(std::move(agreement), then);
    if (core_.serves_others()) serves_others_.store(true, std::memory_order_relaxed);
    if (const ForcedEnd end = forced(); core_.end().ok() && !end.why.ok()) core_.GiveUp(end);
    if (core_.end().ok()) core_.Watch(state_->failure.suspicions(), then);
  }
  if (core_.end().ok()) return true;
  FinishCore();
  return false;
}

void EngineLoop::FinishCore() {
  const Status& why = core_.end();
  state_->submissions.Close(why);
  if (core_.has_failed()) {
    // First, because backends may take long to end: a lane that waits for the verdict would give up
    // and name whom it suspects.
    state_->failure.Settle(why);
    for (auto& backend : state_->parts.backends) backend->Abort(why);
  }
  // What came before the queue closed still gets its error from FinishOpen.
  core_.Submit(state_->submissions.TakeAll());
  core_.FinishOpen(why);
}

void EngineLoop::RunCommands() {
  // A command runs under the step mutex, between two steps, so it sees the core as an agreement
  // left it.
  for (Command& command : commands_.TakeAll()) command(core_);
}

bool EngineLoop::Tell(Command command) {
  const bool is_taken = commands_.Push(std::move(command));
  state_->Wake();
  return is_taken;
}

bool EngineLoop::TellAndWait(Command command, Deadline deadline) {
  struct Call {
    WakeSignal finished;
    std::atomic<bool> is_done{false};
  };
  // The caller may give up before the command has run, and takes its stack with it.
  auto call = std::make_shared<Call>();
  const bool is_taken = Tell([call, command = std::move(command)](EngineCore& core) {
    command(core);
    call->is_done.store(true);
    call->finished.Notify();
  });
  // False does not say that the command will not run: it may come after the deadline, so what it
  // refers to must not be on this stack.
  return is_taken && call->finished.Wait([&] { return call->is_done.load(); }, deadline);
}

void EngineLoop::ForceStop(const ForcedEnd& end) {
  {
    MutexLock lock(force_mutex_);
    // Any thread, at any time; the step looks at it.
    if (forced_.why.ok()) forced_ = end;
  }
  state_->Wake();
}

EngineLoop::ForcedEnd EngineLoop::forced() {
  MutexLock lock(force_mutex_);
  return forced_;
}

bool EngineLoop::WaitEnded(Deadline deadline) {
  return ended_.Wait([this] { return has_ended_.load(); }, deadline);
}

std::string EngineLoop::CoreJson(Deadline deadline) {
  // Nobody does the steps, or this is the callback of a request that the engine thread has
  // finished: a command would wait for this very thread.
  if (step_mutex_.TryLock()) {
    // The lock is tried and not taken: the engine thread holds it while it sleeps in Await, for as
    // long as no other rank says anything.
    std::string json = is_running_ ? MakeJson(core_) : std::string();
    step_mutex_.Unlock();
    if (!json.empty()) return json;
  }
  // The command may run after this function has given up waiting.
  auto json = std::make_shared<std::string>();
  const bool is_done =
      TellAndWait([json, this](EngineCore& core) { *json = MakeJson(core); }, deadline);
  if (is_done) return *json;
  return has_ended_.load() ? last_json_ : std::string();
}

std::string EngineLoop::MakeJson(const EngineCore& core) const {
  JsonWriter json;
  json.Member("hand_back_us", HandBackNs() / 1000);
  core.WriteStatistics(json);
  return json.Take();
}

}  // namespace rabit

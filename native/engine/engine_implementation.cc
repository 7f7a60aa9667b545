#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/json_writer.h"
#include "engine/engine.h"
#include "engine/engine_loop.h"
#include "engine/engine_state.h"
#include "engine/group_calls.h"
#include "engine/lone_waits.h"
#include "engine/ordered_calls.h"
#include "engine/patience.h"
#include "engine/plan_calls.h"
#include "engine/ready_watch.h"
#include "engine/refusal.h"
#include "engine/request_check.h"

namespace rabit {
namespace {

constexpr auto kShortStop = std::chrono::milliseconds(500);

// Whoever waits for so long has nothing else to do.
bool HasNoEnd(Deadline deadline) { return deadline > After(std::chrono::hours(1)); }

bool IsOnDevice(const Request& request) { return request.device.kind != DeviceKind::kCpu; }

// Of what is equal from step to step.
uint64_t HashOf(const Signature& signature) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  add(static_cast<uint64_t>(signature.kind));
  add(static_cast<uint64_t>(signature.dtype));
  add(static_cast<uint64_t>(signature.op));
  const bool is_reduction = signature.kind == Kind::kAllreduce || signature.kind == Kind::kReduce;
  if (is_reduction) add(static_cast<uint64_t>(signature.count()));  // gathers vary
  return hash ^ hash >> 29;
}

class EngineImplementation final : public Engine {
 public:
  explicit EngineImplementation(EngineParts parts)
      : state_(std::make_shared<EngineState>(std::move(parts))),
        loop_(std::make_shared<EngineLoop>(state_)),
        ordered_calls_(*state_),
        group_calls_(*this, state_, loop_),
        plan_calls_(*this, *state_),
        limits_{state_->parts.rank, state_->parts.router->backends(), state_->parts.codecs.get(),
                &state_->devices},
        ready_watch_(*state_),
        thread_([loop = loop_] { loop->Run(); }) {}

  ~EngineImplementation() override {
    if (!is_stopped_) (void)Stop(After(kShortStop));
    if (!thread_.joinable()) return;
    if (loop_->WaitEnded(After(kEngineEndsWithin))) {
      thread_.join();
    } else {
      state_->logger.Error("the engine thread does not end; it is left behind");
      thread_.detach();
    }
  }

  Status Submit(std::span<Request> requests, std::span<Handle> handles) override;
  Status Run(Request request, Handle& handle, Deadline deadline) override;
  Status Wait(Handle handle, Deadline deadline) override {
    return WaitFor(handle, deadline, false);
  }
  Status WaitSlice(Handle handle, Deadline deadline) override {
    return WaitFor(handle, deadline, true);
  }
  Status WaitOnStream(Handle handle, uint64_t stream, Deadline deadline) override;
  Result<int> WaitAny(std::span<const Handle> handles, uint64_t* news, Deadline deadline) override {
    WakeForUnattended();
    state_->submissions.Hurry();
    return state_->handles.WaitAny(handles, news, deadline);
  }
  Result<bool> IsDone(Handle handle) const override {
    WakeForUnattended();
    state_->submissions.Hurry();
    return state_->handles.IsDone(handle);
  }
  Result<HandleOutput> Output(Handle handle) const override {
    return state_->handles.Output(handle);
  }
  void Release(Handle handle) override {
    WakeForUnattended();
    state_->handles.Release(handle);
  }

  void Refuse(const Request& request, const Status& why) override;
  Status RunOrdered(const OrderedCall& call, Deadline deadline) override {
    return ordered_calls_.Run(call, deadline);
  }
  Status RunOrdered(const std::string& what, const std::function<Status()>& exchange) override {
    return ordered_calls_.Run(what, exchange);
  }

  Result<GroupId> AddGroup(std::span<const int> ranks, Deadline deadline) override {
    return group_calls_.Add(ranks, deadline);
  }
  Status RemoveGroup(GroupId group, Deadline deadline) override {
    return group_calls_.Remove(group, deadline);
  }
  Status SetPlan(GroupId group, std::string_view text, Deadline deadline) override {
    return plan_calls_.Set(group, text, deadline);
  }
  Result<Group> GetGroup(GroupId group) const override {
    RABIT_ASSIGN_OR_RETURN(std::shared_ptr<const Group> found, state_->groups.Find(group));
    return *found;
  }

  Status Propose(const Tunables& tunables) override;
  Status ResetTunables() override;

  Status StartTimeline(const std::string& path, bool mark_cycles) override {
    return state_->record.timeline().Start(path, mark_cycles);
  }
  Status StopTimeline() override { return state_->record.timeline().Stop(); }
  Status StartRecord() {
    const EngineOptions& options = state_->parts.options;
    return state_->record.Start(options.record, options.epoch, options.operation_log);
  }
  std::string StatisticsJson() const override;
  void Abort(const std::string& reason, Deadline deadline) override;
  Status Stop(Deadline deadline) override;
  bool HasEnded() const override { return loop_->HasEnded(); }

 private:
  Status CheckAll(std::span<Request> requests);
  // Of those on a device: keeps what their streams have to do before them.
  Status MarkReady(std::span<Request> requests);
  // Whether all of those on a device are run where their streams can be waited for.  None of them
  // is more urgent than another: what is computed first, goes first.
  bool ComeEarly(std::span<const Request> requests) const;
  Status WaitFor(Handle handle, Deadline deadline, bool is_slice);
  // Whoever waits for the request is about to: what it needs is done, here or elsewhere.
  void Attend(const std::shared_ptr<PendingRequest>& pending, Deadline deadline);
  Status CheckProposes() const;
  Status WhyEnded() const;
  // Hands one request over that its caller has opened; nobody is woken if it is `awaited`.
  Status Push(const std::shared_ptr<PendingRequest>& pending, bool is_awaited);
  // Whoever does anything but wait for it leaves it to the engine thread.
  void WakeForUnattended() const {
    if (unattended_.load(std::memory_order_relaxed) != 0 && unattended_.exchange(0) != 0) {
      state_->Wake();
    }
  }
  std::string Where() const { return "rank " + std::to_string(state_->parts.rank); }

  const std::shared_ptr<EngineState> state_;
  const std::shared_ptr<EngineLoop> loop_;
  OrderedCalls ordered_calls_;
  GroupCalls group_calls_;
  PlanCalls plan_calls_;
  const RequestLimits limits_;
  LoneWaits lone_waits_;
  ReadyWatch ready_watch_;
  mutable std::atomic<uint64_t> unattended_{0};  // submitted without waking anybody; a handle
  std::thread thread_;
  Mutex stop_mutex_;
  std::atomic<bool> is_stopped_{false};
  Status stop_status_ RABIT_GUARDED_BY(stop_mutex_);
};

Status EngineImplementation::Submit(std::span<Request> requests, std::span<Handle> handles) {
  if (requests.size() != handles.size()) {
    return InvalidArgument(Where() + ": " + std::to_string(requests.size()) +
                           " requests but room "
                           "for " +
                           std::to_string(handles.size()) + " handles; pass as many");
  }
  if (requests.empty()) return Status();
  Status status = CheckAll(requests);
  if (status.ok()) status = MarkReady(requests);
  if (!status.ok()) {
    // All or none: the other ranks wait for none of them.
    for (const Request& request : requests) Refuse(request, status);
    return status;
  }
  WakeForUnattended();
  state_->callers.OnSubmit();
  const bool is_on_device = std::any_of(requests.begin(), requests.end(), IsOnDevice);
  const bool is_early = is_on_device && ComeEarly(requests);
  for (Request& request : requests) request.is_early = is_early && IsOnDevice(request);
  const bool is_awaited = !is_on_device && requests.size() == 1 && lone_waits_.Expects();
  requests[0].is_waited_for = is_awaited;
  RABIT_ASSIGN_OR_RETURN(auto opened, state_->handles.Open(requests, NowNs()));
  for (size_t i = 0; i < opened.size(); ++i) handles[i] = opened[i]->handle;
  uint64_t work_hash = 0;
  for (const auto& pending : opened) work_hash += HashOf(pending->request.signature);
  const auto count = static_cast<int64_t>(opened.size());
  if (is_on_device && !is_early) {
    ready_watch_.Push(std::move(opened));
    state_->statistics.AddSubmitted(count, work_hash);
    return Status();
  }
  if (opened.size() > 1) lone_waits_.OnSubmitSeveral(opened[0]->submitted_ns);
  status = opened.size() == 1 ? Push(opened[0], is_awaited) : state_->submissions.Push(opened);
  if (!status.ok()) {
    state_->handles.Forget(opened);
    return status.Annotated(opened[0]->Describe(state_->parts.rank));
  }
  state_->statistics.AddSubmitted(count, work_hash);
  return Status();
}

Status EngineImplementation::CheckAll(std::span<Request> requests) {
  std::shared_ptr<const Group> group;
  for (Request& request : requests) {
    if (group == nullptr || group->id != request.signature.group) {
      RABIT_ASSIGN_OR_RETURN(group, state_->groups.Find(request.signature.group));
    }
    RABIT_RETURN_IF_ERROR(CheckRequest(limits_, *group, request));
  }
  return Status();
}

bool EngineImplementation::ComeEarly(std::span<const Request> requests) const {
  return std::all_of(requests.begin(), requests.end(), [this](const Request& request) {
    if (!IsOnDevice(request)) return true;
    const auto group = state_->groups.Find(request.signature.group);
    if (request.signature.priority != 0 || !group.ok()) return false;
    const Load load{static_cast<int64_t>(request.input.bytes())};
    const auto route = state_->parts.router->Of(request.signature, load, **group);
    return route.ok() &&
           state_->parts.backends[static_cast<size_t>(route->executor)]->works_on_devices();
  });
}

Status EngineImplementation::MarkReady(std::span<Request> requests) {
  const Request* before = nullptr;
  for (Request& request : requests) {
    if (!IsOnDevice(request)) continue;
    // The gradients of a backward pass come together, from one stream.
    if (before != nullptr && before->device == request.device && before->stream == request.stream) {
      request.ready = before->ready;
      continue;
    }
    auto marked =
        state_->devices.Mark(request.device.index, reinterpret_cast<void*>(request.stream));
    if (!marked.ok()) {
      return Status(marked.status().code(), std::string(Name(request.signature.kind)) + " '" +
                                                request.name + "' on " + Where() + ": " +
                                                marked.status().message());
    }
    request.ready = std::move(*marked);
    before = &request;
  }
  return Status();
}

void EngineImplementation::Refuse(const Request& request, const Status& why) {
  const auto group = state_->groups.Find(request.signature.group);
  if (!group.ok() || !IsAwaited(request, **group, state_->parts.rank)) return;
  // The round in flight is good, and the others wait for no further one yet.
  if (state_->handles.IsOpen(request)) return;
  const int rank = state_->parts.rank;
  const TensorKey key = KeyOf(request.name, request.signature, rank);
  const Status told = RefusedBy(rank, request, why);
  // A thread that has ended has failed every round, or all ranks have stopped.
  (void)loop_->Tell([key, told](EngineCore& core) { core.Refuse(key, told); });
}

Status EngineImplementation::Push(const std::shared_ptr<PendingRequest>& pending, bool is_awaited) {
  bool is_quiet = false;
  if (is_awaited) {
    RABIT_ASSIGN_OR_RETURN(is_quiet, loop_->SubmitQuietly(pending));
  }
  if (is_quiet) {
    unattended_.store(pending->handle.value);
  } else {
    RABIT_RETURN_IF_ERROR(state_->submissions.Push({&pending, 1}));
  }
  // The time is that after a wake, which may have cost the caller its core.
  lone_waits_.OnSubmit(pending->handle, is_quiet, NowNs());
  return Status();
}

Status EngineImplementation::WaitFor(Handle handle, Deadline deadline, bool is_slice) {
  RABIT_ASSIGN_OR_RETURN(const auto pending, state_->handles.Find(handle));
  if (pending->is_finished()) return state_->handles.Wait(handle, deadline);
  const bool has_no_end = is_slice || HasNoEnd(deadline);
  if (has_no_end) state_->callers.OnWait(handle);
  Attend(pending, deadline);
  Status status = state_->handles.Wait(handle, deadline);
  if (has_no_end) {
    state_->callers.OnWaited(is_slice && status.code() == Code::kTimedOut &&
                             !pending->is_finished());
  }
  return status;
}

Status EngineImplementation::WaitOnStream(Handle handle, uint64_t stream, Deadline deadline) {
  RABIT_ASSIGN_OR_RETURN(const auto pending, state_->handles.Find(handle));
  Attend(pending, deadline);
  return state_->handles.WaitOnStream(handle, reinterpret_cast<void*>(stream), deadline);
}

void EngineImplementation::Attend(const std::shared_ptr<PendingRequest>& pending,
                                  Deadline deadline) {
  const Handle handle = pending->handle;
  lone_waits_.OnWait(handle, NowNs());
  const uint64_t unattended =
      unattended_.load(std::memory_order_relaxed) == 0 ? 0 : unattended_.exchange(0);
  if (unattended == handle.value) {
    OverlapClock& clock = state_->statistics.clock();
    clock.Enter(OverlapClock::kWaiting);
    const bool is_driven = loop_->DriveSubmitted(pending, deadline);
    clock.Leave(OverlapClock::kWaiting);
    if (!is_driven) state_->Wake();
  } else if (unattended != 0) {
    state_->Wake();
  } else if (lone_waits_.Expects()) {
    loop_->LeaveStepsToCallers();
  }
  if (!pending->is_finished()) state_->submissions.Hurry();
}

Status EngineImplementation::Run(Request request, Handle& handle, Deadline deadline) {
  handle = Handle{};
  if (IsOnDevice(request)) {  // nobody can drive what waits for a device
    RABIT_RETURN_IF_ERROR(Submit({&request, 1}, {&handle, 1}));
    return Wait(handle, deadline);
  }
  if (Status status = CheckAll({&request, 1}); !status.ok()) {
    Refuse(request, status);
    return status;
  }
  request.is_waited_for = true;
  RABIT_ASSIGN_OR_RETURN(auto opened, state_->handles.Open({&request, 1}, NowNs()));
  const uint64_t work_hash = HashOf(opened[0]->request.signature);
  state_->callers.OnSubmit();
  if (HasNoEnd(deadline)) state_->callers.OnWait(opened[0]->handle);
  OverlapClock& clock = state_->statistics.clock();
  clock.Enter(OverlapClock::kWaiting);
  const Result<bool> is_driven = loop_->Drive(opened[0], deadline);
  clock.Leave(OverlapClock::kWaiting);
  Status status = is_driven.status();
  if (status.ok() && !*is_driven) status = state_->submissions.Push(opened);
  if (!status.ok()) {
    state_->handles.Forget(opened);
    return status.Annotated(opened[0]->Describe(state_->parts.rank));
  }
  state_->statistics.AddSubmitted(1, work_hash);
  handle = opened[0]->handle;
  return Wait(handle, deadline);
}

Status EngineImplementation::Propose(const Tunables& tunables) {
  RABIT_RETURN_IF_ERROR(CheckProposes());
  const int32_t lanes = state_->parts.options.lanes;
  if (tunables.lanes == 0 || tunables.lanes > lanes || tunables.partition_bytes == 0) {
    return InvalidArgument(Where() + " proposed " + std::to_string(tunables.lanes) + " lanes and " +
                           "partitions of " + std::to_string(tunables.partition_bytes) +
                           " bytes: it takes 1 to " + std::to_string(lanes) +
                           " lanes, as many as were started, and at least one byte; correct them");
  }
  const bool is_taken = loop_->Tell([tunables](EngineCore& core) { core.Propose(tunables); });
  return is_taken ? Status() : WhyEnded();
}

Status EngineImplementation::ResetTunables() {
  RABIT_RETURN_IF_ERROR(CheckProposes());
  const bool is_taken = loop_->Tell([](EngineCore& core) { core.ResetTunables(); });
  return is_taken ? Status() : WhyEnded();
}

Status EngineImplementation::CheckProposes() const {
  if (state_->parts.rank == 0) return Status();
  return InvalidArgument(
      Where() + " proposed other tunables: only rank 0 does, for every rank; call it there");
}

Status EngineImplementation::WhyEnded() const {
  if (state_->failure.has_verdict()) return state_->failure.verdict();
  return Aborted(Where() + ": the engine has stopped; start a new one");
}

std::string EngineImplementation::StatisticsJson() const {
  JsonWriter json;
  json.BeginObject().Member("rank", state_->parts.rank).Member("size", state_->parts.size);
  json.Member("lanes", state_->parts.options.lanes).Member("open", state_->handles.open_count());
  state_->statistics.Write(json);
  json.Key("backend_details").BeginObject();
  for (const auto& backend : state_->parts.backends) {
    json.Key(backend->name()).BeginObject();
    backend->WriteStatistics(json);
    json.EndObject();
  }
  json.EndObject().Key("pinned").BeginObject();
  state_->devices.pinned->Write(json);
  json.EndObject();
  json.Splice(loop_->CoreJson(After(std::chrono::milliseconds(500))));
  if (state_->failure.has_verdict()) json.Member("failure", state_->failure.verdict().ToString());
  return json.EndObject().Take();
}

void EngineImplementation::Abort(const std::string& reason, Deadline deadline) {
  const int rank = state_->parts.rank;
  const std::string text = Where() + " is ending after " + reason;
  loop_->ForceStop({Aborted(text).WithCulprit(rank), PeerLost(rank, text)});
  (void)loop_->WaitEnded(deadline);
}

Status EngineImplementation::Stop(Deadline deadline) {
  MutexLock lock(stop_mutex_);
  if (is_stopped_) return stop_status_;
  is_stopped_ = true;
  state_->wants_stop.store(true);
  state_->Wake();
  if (!loop_->WaitEnded(deadline)) {
    stop_status_ = TimedOut(Where() +
                            ": the other ranks did not stop in time: one of them is "
                            "still working or waits; call stop on every rank, or allow more time");
    const Status why =
        Aborted(Where() +
                " stopped without waiting for the other ranks, as a rank does that an "
                "error ends; see what it says");
    loop_->ForceStop({why, why});
    (void)loop_->WaitEnded(After(kEngineEndsWithin));
  } else if (state_->failure.has_verdict()) {
    stop_status_ = state_->failure.verdict();
  }
  state_->record.Stop();
  return stop_status_;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Start(EngineParts parts) {
  const std::string where = "rank " + std::to_string(parts.rank);
  if (parts.controller == nullptr || parts.scheduler == nullptr || parts.router == nullptr ||
      parts.backends.empty() || parts.codecs == nullptr) {
    return Internal(where +
                    ": an engine needs a controller, a scheduler, a router, a backend and a "
                    "set of codecs; report this");
  }
  if (parts.options.lanes < 1 || parts.options.lanes > 64) {
    return InvalidArgument(where + ": " + std::to_string(parts.options.lanes) +
                           " lanes cannot be: an engine has 1 to 64; correct the option lanes");
  }
  RABIT_CHECK(parts.all_lanes() < 256, "a tag has 8 bits for lanes and ordered calls");
  auto engine = std::make_unique<EngineImplementation>(std::move(parts));
  RABIT_RETURN_IF_ERROR(engine->StartRecord());
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace rabit

#include "engine/lane.h"

#include <pthread.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/bucket_memories.h"
#include "engine/patience.h"

namespace rabit {
namespace {

// A missing implementation fails its tensors alike on all ranks; after anything else the ranks no
// longer agree about what is on the wire.
bool LeavesWireUnclear(const Status& status) { return status.code() != Code::kUnsupported; }

// Ranks that run different things differ in more than a backend.
FailureScope ScopeOf(const BucketRun& run, const Status& status) {
  return status.code() == Code::kMismatch ? kWholeEngine : run.failure_scope();
}

// How many buckets a lane has begun and not finished: enough for a backend that does not block to
// have the next one while it finishes one.
constexpr size_t kFlightsMax = 4;
// The same with those that are on the stream of a device, where one costs an event: enough for a
// program to go on with its next step while the device is in the one before.
constexpr size_t kPlacesMax = 64;
// How often a lane that waits for one looks whether there is another to begin.
constexpr auto kLookEvery = std::chrono::microseconds(200);
constexpr size_t kThreadNameMax = 15;  // Linux refuses longer ones

}  // namespace

// Each has memory of its own, because that of a pending one is in use.
struct Lane::Flight {
  explicit Flight(DeviceScratch& scratch) : memories(scratch) {}

  void Prepare(EngineState& state, BucketJob next, Waiter waiter);
  void Begin(EngineState& state);  // it is over afterwards, or pending
  void Launch(EngineState& state);
  bool WaitOver(Deadline until) { return run->WaitOver(until); }
  void Finish(EngineState& state);
  void Conclude(EngineState& state, Status status);
  bool is_over() const { return !run.has_value(); }
  bool has_images() const { return run.has_value() && run->has_images(); }
  bool is_on_stream() const { return run.has_value() && run->is_on_stream(); }

  BucketJob job;
  BucketMemories memories;
  Status prepared;
  std::optional<BucketRun> run;
  std::vector<const DeviceEvent*> results;  // by item, of those that are launched; else null
  bool has_credit = false;                  // it was given back when they were launched
};

struct Lane::Inbox {
  Inbox(std::string thread, std::chrono::microseconds spin)
      : thread_name(std::move(thread)), changed(spin) {}

  // The next job of whoever has made the lane busy; without one, and with none in the air, it is
  // idle from here on.
  std::optional<BucketJob> Take(bool has_flights) {
    MutexLock lock(mutex);
    if (jobs.empty()) {
      if (!has_flights) is_busy = false;
      return std::nullopt;
    }
    std::optional<BucketJob> job(std::move(jobs.front()));
    jobs.pop_front();
    return job;
  }
  // Of those that have ended the last one, whose memory is warm, or a new one.
  std::unique_ptr<Flight> TakeFlight() {
    if (ended_flights.empty()) return std::make_unique<Flight>(scratch);
    std::unique_ptr<Flight> flight = std::move(ended_flights.back());
    ended_flights.pop_back();
    return flight;
  }
  bool HasJobs() {
    MutexLock lock(mutex);
    return !jobs.empty();
  }
  bool HasWork() {
    MutexLock lock(mutex);
    return !is_busy && (!jobs.empty() || is_closed);
  }
  // After a job; whether there is something for the thread to do.
  bool BecomeIdle() {
    MutexLock lock(mutex);
    is_busy = false;
    return !jobs.empty() || is_closed;
  }

  const std::string thread_name;
  WakeSignal changed;
  std::atomic<bool> has_ended{false};
  WakeSignal ended;
  Mutex mutex;
  bool is_closed RABIT_GUARDED_BY(mutex) = false;
  bool is_busy RABIT_GUARDED_BY(mutex) = false;  // a job runs, or is about to
  std::deque<BucketJob> jobs RABIT_GUARDED_BY(mutex);
  // Whoever has made the lane busy.
  DeviceScratch scratch;
  std::vector<std::unique_ptr<Flight>> ended_flights;
};

Lane::Lane(std::shared_ptr<EngineState> state, const std::string& lane_class)
    : state_(std::move(state)),
      inbox_(std::make_shared<Inbox>(("rabit-" + lane_class).substr(0, kThreadNameMax),
                                     std::chrono::microseconds(state_->parts.options.spin_us))) {}

Lane::~Lane() {
  Close();
  (void)Join(After(std::chrono::seconds(1)));
}

void Lane::StartThread() {
  if (has_thread_.load()) return;
  MutexLock lock(thread_mutex_);
  if (has_thread_.exchange(true)) return;
  thread_ = std::thread([state = state_, inbox = inbox_] { Loop(*state, *inbox); });
}

void Lane::Push(BucketJob job) {
  {
    MutexLock lock(inbox_->mutex);
    inbox_->jobs.push_back(std::move(job));
  }
  inbox_->changed.Notify();
  StartThread();
}

bool Lane::TryClaim() {
  MutexLock lock(inbox_->mutex);
  if (inbox_->is_busy || inbox_->is_closed || !inbox_->jobs.empty()) return false;
  inbox_->is_busy = true;
  return true;
}

bool Lane::CanExtendClaim() const {
  MutexLock lock(inbox_->mutex);
  return inbox_->jobs.empty();
}

void Lane::RunClaimed(BucketJob job) {
  std::unique_ptr<Flight> flight = inbox_->TakeFlight();
  flight->Prepare(*state_, std::move(job), Waiter::kCaller);
  flight->Begin(*state_);
  if (!flight->is_over()) flight->Finish(*state_);
  inbox_->ended_flights.push_back(std::move(flight));
}

void Lane::GiveBack(BucketJob job) {
  {
    MutexLock lock(inbox_->mutex);
    inbox_->jobs.push_front(std::move(job));
  }
  StartThread();
}

void Lane::Release() {
  // Waking the thread for nothing would take the core from the caller, which goes on.
  if (inbox_->BecomeIdle()) inbox_->changed.Notify();
}

void Lane::Close() {
  bool is_claimed = false;
  {
    MutexLock lock(inbox_->mutex);
    inbox_->is_closed = true;
    is_claimed = inbox_->is_busy;
  }
  inbox_->changed.Notify();
  if (is_claimed) StartThread();  // which ends when the claim has
}

bool Lane::Join(Deadline deadline) {
  if (!has_thread_.load()) return true;
  MutexLock lock(thread_mutex_);
  if (!thread_.joinable()) return true;
  if (inbox_->ended.Wait([this] { return inbox_->has_ended.load(); }, deadline)) {
    thread_.join();
    return true;
  }
  thread_.detach();
  return false;
}

void Lane::Loop(EngineState& state, Inbox& inbox) {
  ::pthread_setname_np(::pthread_self(), inbox.thread_name.c_str());
  for (;;) {
    inbox.changed.Wait([&] { return inbox.HasWork(); }, After(std::chrono::hours(24)));
    {
      MutexLock lock(inbox.mutex);
      if (inbox.is_busy) continue;
      if (inbox.jobs.empty()) {
        if (inbox.is_closed) break;
        continue;
      }
      inbox.is_busy = true;
    }
    RunAll(state, inbox);
  }
  inbox.has_ended.store(true);
  inbox.ended.Notify();
}

// Flights begin and end in one order, that of the jobs.  As long as the last job waits for a
// device, the next ones have theirs copied as well.
void Lane::RunAll(EngineState& state, Inbox& inbox) {
  std::deque<std::unique_ptr<Flight>> air;
  size_t begun = 0;  // of these
  const auto has_room = [&air] {
    // For these the lane has nothing to do but to see that they end.
    const auto on_streams = std::count_if(
        air.begin(), air.end(), [](const auto& flight) { return flight->is_on_stream(); });
    return air.size() < kPlacesMax && air.size() - static_cast<size_t>(on_streams) < kFlightsMax;
  };
  // The next one would be exchanged with no copy beside it, for want of the room of the first one,
  // whose result has arrived meanwhile.
  const auto makes_room = [&] {
    if (has_room() || begun == 0 || begun + 1 != air.size() || !air.back()->has_images())
      return false;
    return inbox.HasJobs() && air.front()->WaitOver(std::chrono::steady_clock::now());
  };
  for (;;) {
    std::optional<BucketJob> job;
    const bool looks_ahead = begun == air.size() || air.back()->has_images();
    if (has_room() && looks_ahead) job = inbox.Take(!air.empty());
    if (job) {
      air.push_back(inbox.TakeFlight());
      air.back()->Prepare(state, std::move(*job), Waiter::kBackground);
    } else if (begun < air.size() && !makes_room()) {
      air[begun++]->Begin(state);
    } else if (air.empty()) {
      return;
    } else {
      // Meanwhile there may be one more to begin, which the ranks that have it already wait for.
      if (has_room() && !air.front()->WaitOver(After(kLookEvery))) continue;
      air.front()->Finish(state);
    }
    while (begun > 0 && air.front()->is_over()) {
      inbox.ended_flights.push_back(std::move(air.front()));
      air.pop_front();
      --begun;
    }
  }
}

void Lane::Flight::Prepare(EngineState& state, BucketJob next, Waiter waiter) {
  job = std::move(next);
  prepared =
      state.failure.verdict_on(job.route.ok() ? state.ScopeOf(job.route->executor) : kWholeEngine);
  if (!prepared.ok()) return;
  run.emplace(state.lane_services, job, memories.For(state.lane_services, job), waiter);
  prepared = run->Prepare();
}

void Lane::Flight::Begin(EngineState& state) {
  if (prepared.ok()) prepared = run->Begin();
  if (!prepared.ok() || !run->is_pending()) {
    Conclude(state, std::exchange(prepared, Status()));
  } else {
    Launch(state);
  }
}

// Whoever waits on a stream need not wait for the device.
void Lane::Flight::Launch(EngineState& state) {
  results.assign(job.items.size(), nullptr);
  bool is_early = run->is_on_stream();
  for (size_t i = 0; i < job.items.size(); ++i) {
    const std::shared_ptr<PendingRequest>& request = job.items[i].tensor->request;
    if (request == nullptr) continue;
    is_early = is_early && request->request.is_early;
    // Runtimes that are told of the end take it for that of the device.
    if (request->request.completion.notify != nullptr) continue;
    results[i] = run->ResultOf(job.items[i]);
    if (results[i] != nullptr) state.handles.Launch(request, *results[i]);
  }
  if (!is_early) return;
  // What comes next cannot be more urgent: the stream may have it as soon as it is agreed.
  has_credit = true;
  state.done.MarkDone(job.bucket.lane_class, job.bucket.id);
  if (state.needs_credit.load() || state.wants_stop.load()) state.Wake();
}

void Lane::Flight::Finish(EngineState& state) { Conclude(state, run->Finish()); }

void Lane::Flight::Conclude(EngineState& state, Status status) {
  if (run && !status.ok() && LeavesWireUnclear(status)) {
    status = state.failure.Resolve(ScopeOf(*run, status),
                                   status.Annotated(DescribeBucket(job, state.parts.rank)),
                                   After(kVerdictWithin));
  }
  run.reset();
  // Credit first: whoever wakes from a handle may ask for it.
  if (!std::exchange(has_credit, false)) {
    state.done.MarkDone(job.bucket.lane_class, job.bucket.id);
  }
  for (size_t i = 0; i < job.items.size(); ++i) {
    const std::shared_ptr<PendingRequest>& request = job.items[i].tensor->request;
    if (request == nullptr) continue;
    if (!status.ok()) request->SetError(status.Annotated(request->Describe(state.parts.rank)));
    state.handles.Drop(request, results.empty() ? nullptr : results[i]);
  }
  results.clear();
  job = {};  // what it holds is not kept until the next one
  if (state.needs_credit.load() || state.wants_stop.load()) state.Wake();
}

}  // namespace rabit

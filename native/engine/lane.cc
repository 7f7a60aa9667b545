#include "engine/lane.h"

#include <pthread.h>

#include <string>

namespace rabit {
namespace {

// The engine thread gives the control plane a grace time before it settles; this is longer.
constexpr auto kVerdictTimeout = std::chrono::seconds(2);

// A missing implementation fails its tensors alike on all ranks; after anything else the ranks no
// longer agree about what is on the wire.
bool IsEngineWide(const Status& status) { return status.code() != Code::kUnsupported; }

Status Wrap(const std::string& what, const Status& status) {
  if (status.message().starts_with(what)) return status;
  return Status(status.code(), what + ": " + status.message()).WithCulprit(status.culprit());
}

}  // namespace

struct Lane::Inbox {
  explicit Inbox(std::chrono::microseconds spin) : changed(spin) {}

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

  WakeSignal changed;
  std::atomic<bool> has_ended{false};
  WakeSignal ended;
  Mutex mutex;
  bool is_closed RABIT_GUARDED_BY(mutex) = false;
  bool is_busy RABIT_GUARDED_BY(mutex) = false;  // a job runs, or is about to
  std::deque<BucketJob> jobs RABIT_GUARDED_BY(mutex);
  FusionBuffer buffer;  // whoever has made the lane busy
};

Lane::Lane(std::shared_ptr<EngineState> state)
    : state_(std::move(state)),
      inbox_(std::make_shared<Inbox>(std::chrono::microseconds(state_->parts.options.spin_us))),
      thread_([state = state_, inbox = inbox_] { Loop(*state, *inbox); }) {}

Lane::~Lane() {
  Close();
  (void)Join(After(std::chrono::seconds(1)));
}

void Lane::Push(BucketJob job) {
  {
    MutexLock lock(inbox_->mutex);
    inbox_->jobs.push_back(std::move(job));
  }
  inbox_->changed.Notify();
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

void Lane::RunClaimed(BucketJob job) { RunJob(*state_, job, inbox_->buffer, Waiter::kCaller); }

void Lane::GiveBack(BucketJob job) {
  MutexLock lock(inbox_->mutex);
  inbox_->jobs.push_front(std::move(job));
}

void Lane::Release() {
  // Waking the thread for nothing would take the core from the caller, which goes on.
  if (inbox_->BecomeIdle()) inbox_->changed.Notify();
}

void Lane::Close() {
  {
    MutexLock lock(inbox_->mutex);
    inbox_->is_closed = true;
  }
  inbox_->changed.Notify();
}

bool Lane::Join(Deadline deadline) {
  if (!thread_.joinable()) return true;
  if (inbox_->ended.Wait([this] { return inbox_->has_ended.load(); }, deadline)) {
    thread_.join();
    return true;
  }
  thread_.detach();
  return false;
}

void Lane::Loop(EngineState& state, Inbox& inbox) {
  ::pthread_setname_np(::pthread_self(), "rabit-lane");
  for (;;) {
    BucketJob job;
    inbox.changed.Wait([&] { return inbox.HasWork(); }, After(std::chrono::hours(24)));
    {
      MutexLock lock(inbox.mutex);
      if (inbox.is_busy) continue;
      if (inbox.jobs.empty()) {
        if (inbox.is_closed) break;
        continue;
      }
      job = std::move(inbox.jobs.front());
      inbox.jobs.pop_front();
      inbox.is_busy = true;
    }
    RunJob(state, job, inbox.buffer, Waiter::kBackground);
    (void)inbox.BecomeIdle();
  }
  inbox.has_ended.store(true);
  inbox.ended.Notify();
}

void Lane::RunJob(EngineState& state, BucketJob& job, FusionBuffer& buffer, Waiter waiter) {
  Status status = state.failure.verdict();
  if (status.ok()) {
    status = BucketRun(state.lane_services, job, buffer, waiter).Run();
    if (!status.ok() && IsEngineWide(status)) {
      status = state.failure.Resolve(Wrap(DescribeBucket(job, state.parts.rank), status),
                                     After(kVerdictTimeout));
    }
  }
  // Credit first: whoever wakes from a handle may ask for it.
  state.done.MarkDone(job.bucket.id);
  for (BucketItem& item : job.items) {
    const std::shared_ptr<PendingRequest>& request = item.tensor->request;
    if (request == nullptr) continue;
    if (!status.ok()) request->SetError(Wrap(request->Describe(state.parts.rank), status));
    state.handles.Drop(request);
  }
  if (state.needs_credit.load() || state.wants_stop.load()) state.Wake();
}

}  // namespace rabit

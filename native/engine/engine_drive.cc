// What callers of blocking operations do of the engine thread's work.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "engine/engine_loop.h"

namespace rabit {

Result<bool> EngineLoop::Drive(const std::shared_ptr<PendingRequest>& pending, Deadline deadline) {
  // Without time for a step nobody would be woken for what is pushed quietly.
  if (kSteadyClock.Now() >= deadline) return false;
  const int64_t began_ns = NowNs();
  last_drive_ns_.store(began_ns);
  if (!step_mutex_.TryLock()) return false;
  if (!is_running_) {
    step_mutex_.Unlock();
    return false;
  }
  if (Status status = state_->submissions.PushQuietly({&pending, 1}); !status.ok()) {
    step_mutex_.Unlock();
    return status;
  }
  DriveLocked(pending, deadline, began_ns);
  return true;
}

Result<bool> EngineLoop::SubmitQuietly(const std::shared_ptr<PendingRequest>& pending) {
  last_drive_ns_.store(NowNs());
  if (!step_mutex_.TryLock()) return false;
  // Whoever has the mutex next takes it: steps begin with that.
  const Status status = is_running_ ? state_->submissions.PushQuietly({&pending, 1}) : Status();
  const bool is_submitted = is_running_;
  step_mutex_.Unlock();
  has_guessed_.store(true);
  if (!status.ok()) return status;
  return is_submitted;
}

bool EngineLoop::DriveSubmitted(const std::shared_ptr<PendingRequest>& pending, Deadline deadline) {
  const int64_t began_ns = NowNs();
  last_drive_ns_.store(began_ns);
  if (!step_mutex_.TryLock()) return false;
  if (!is_running_) {
    step_mutex_.Unlock();
    return false;
  }
  DriveLocked(pending, deadline, began_ns);
  return true;
}

void EngineLoop::DriveLocked(const std::shared_ptr<PendingRequest>& pending, Deadline deadline,
                             int64_t began_ns) {
  // Waits spin as long as a caller may: nobody on this rank needs the core meanwhile.  It is set
  // back below, before another thread can take the steps.
  state_->parts.controller->SetWaiter(Waiter::kCaller);
  driven_ = pending.get();
  // What others wait for by a callback does not wait for this call: the engine thread goes on.
  while (is_running_ && !pending->is_agreed && !pending->is_finished() && completed_.empty()) {
    const Deadline now = kSteadyClock.Now();
    if (now >= deadline) break;
    is_running_ = Step(now, deadline);
  }
  driven_ = nullptr;
  state_->parts.controller->SetWaiter(Waiter::kBackground);
  // The jobs and callbacks are taken out under the mutex and run without it: a collective lasts,
  // and a callback may call the engine.
  std::vector<OwnJob> own = std::exchange(own_jobs_, {});
  const Requests completed = std::exchange(completed_, {});
  const bool leaves_work = !is_running_ || !CanPark();
  step_mutex_.Unlock();
  // Without this wake an agreement that this thread has not carried out would wait until the engine
  // thread looks by itself, 10 ms later.
  if (leaves_work) state_->Wake();
  Notify(completed);
  RunOwn(std::move(own), deadline);
  const int64_t ended_ns = NowNs();
  last_call_ns_.store(ended_ns - began_ns);
  // Park counts from here, so that the next call of a row finds the steps free.
  last_drive_ns_.store(ended_ns);
}

int64_t EngineLoop::HandBackNs() const {
  // The answer is a guess without a lock: a stale value costs one wait of at most kHandBackMax,
  // never a step.
  if (serves_others_.load()) return kHandBackMin.count();
  if (has_guessed_.load()) return kHandBackAfterGuess.count();
  if (!state_->groups.has_added()) return kHandBackMax.count();
  return std::clamp<int64_t>(2 * last_call_ns_.load(), kHandBackMin.count(), kHandBackMax.count());
}

// The caller runs its own request where it has a bucket for itself and nothing is before it: on one
// thread in the order of the buckets, which is that of every lane on every rank.
bool EngineLoop::TryOwn(BucketJob& job) {
  if (driven_ == nullptr) return false;
  for (const BucketItem& item : job.items) {
    // A bucket with somebody else's tensor goes to its lane: this caller may have a deadline, and
    // the other one does not depend on it.
    if (item.request() != driven_) return false;
  }
  Lane* const lane = lanes_[static_cast<size_t>(job.bucket.lane)].get();
  const bool is_claimed = std::any_of(own_jobs_.rbegin(), own_jobs_.rend(),
                                      [lane](const OwnJob& own) { return own.lane == lane; });
  // A claimed lane runs nothing by its own thread until Release, so the order of its buckets is
  // kept.
  if (is_claimed ? !lane->CanExtendClaim() : !lane->TryClaim()) return false;
  own_jobs_.push_back({lane, std::move(job)});
  return true;
}

// A lane is free for others as soon as its last job is over; what the deadline leaves runs there.
void EngineLoop::RunOwn(std::vector<OwnJob> own, Deadline deadline) {
  const auto release_after = [&own](size_t i) {
    const bool has_more =
        std::any_of(own.begin() + static_cast<std::ptrdiff_t>(i) + 1, own.end(),
                    [&](const OwnJob& later) { return later.lane == own[i].lane; });
    if (!has_more) own[i].lane->Release();
  };
  size_t begun = 0;
  while (begun < own.size() && (begun == 0 || kSteadyClock.Now() < deadline)) {
    own[begun].lane->RunClaimed(std::move(own[begun].job));
    release_after(begun++);
  }
  // From the last one on, because GiveBack puts a job at the head of the lane's queue.
  for (size_t i = own.size(); i-- > begun;) own[i].lane->GiveBack(std::move(own[i].job));
  for (size_t i = begun; i < own.size(); ++i) release_after(i);
}

}  // namespace rabit

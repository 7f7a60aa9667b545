// EngineLoop: the thread that feeds a core, and the callers who do its steps in between.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/command_queue.h"
#include "engine/engine_core.h"
#include "engine/engine_state.h"
#include "engine/lane.h"

namespace rabit {

// Run is the body of the engine thread: step after step.  A caller that waits for its own request
// may do the steps instead (Drive): that saves the change to the engine thread and back, which
// costs more than the step.  Afterwards the engine thread leaves the steps to callers for
// some milliseconds, so that the next call finds them free, unless there is something to do at
// once.  The public methods are thread-safe; everything private is touched under step_mutex_.
class EngineLoop final : private CoreOutput {
 public:
  using Command = CommandQueue::Command;
  using ForcedEnd = EngineCore::ForcedEnd;

  explicit EngineLoop(std::shared_ptr<EngineState> state);

  // Returns after the agreed stop or the first engine-wide failure; every handle is then finished,
  // or finished by its lane as soon as that notices.
  void Run();

  // Submits `pending` and does the engine's steps on this thread until it is agreed, finished or
  // the deadline has passed; the buckets that an agreed request has for itself are run here as
  // well, until the deadline.  The caller then waits for it as usual.  False: the steps are in
  // other hands; nothing is submitted.
  Result<bool> Drive(const std::shared_ptr<PendingRequest>& pending, Deadline deadline);

  // The two halves of Drive, for a caller that submits and then waits; false as above, from the
  // second if the steps have gone into other hands in between.  Between them nobody does anything,
  // for as long as the engine thread leaves the steps to callers.
  Result<bool> SubmitQuietly(const std::shared_ptr<PendingRequest>& pending);
  bool DriveSubmitted(const std::shared_ptr<PendingRequest>& pending, Deadline deadline);
  // As after a call that drove.
  void LeaveStepsToCallers() { last_drive_ns_.store(NowNs()); }

  // Has `command` run between two steps; what is submitted later comes after it.  False: the thread
  // has ended.
  bool Tell(Command command);
  // The same, and waits until it has run.
  bool TellAndWait(Command command, Deadline deadline);
  // The first reason is kept.
  void ForceStop(const ForcedEnd& end);
  // Waits until Run has returned.
  bool WaitEnded(Deadline deadline);
  bool HasEnded() const { return has_ended_.load(); }
  // JSON members about the negotiation; the last ones if the thread has ended.  Empty if it is
  // busy.
  std::string CoreJson(Deadline deadline);

 private:
  // How long after a call that drove the engine thread leaves the steps to callers.  Each look at
  // the time takes the core from a caller that works, so short times slow down calls in a row. News
  // from other ranks may wait for so long, once, after a rank has stopped making blocking calls.
  // Rank 0 may have to agree for groups that it does not belong to: where there are such, it is
  // only twice as long as the call, so that a row of long calls finds the steps free as well.  Once
  // others have done something without this rank, such as a message between two of them, it is the
  // shortest time.  A guess that the caller will wait at once (LoneWaits) may be wrong, and holds a
  // request up for so long.
  static constexpr std::chrono::nanoseconds kHandBackMax = std::chrono::milliseconds(10);
  static constexpr std::chrono::nanoseconds kHandBackAfterGuess = std::chrono::milliseconds(1);
  static constexpr std::chrono::nanoseconds kHandBackMin = std::chrono::microseconds(500);

  // A backward pass, or a loop over tensors, submits one by one.  Waking the engine thread for each
  // would cost the caller more than the submission, and the ranks an agreement for each: from the
  // second on within kRowGap, the thread looks by itself every kNap, and at once if somebody waits.
  static constexpr std::chrono::nanoseconds kRowGap = std::chrono::microseconds(200);
  static constexpr std::chrono::nanoseconds kNap = std::chrono::microseconds(100);

  // What the caller that drives is to run itself, on a lane that it has claimed.
  struct OwnJob {
    Lane* lane;
    BucketJob job;
  };

  using Requests = EngineCore::Requests;

  // CoreOutput
  void Run(BucketJob job) override RABIT_REQUIRES(step_mutex_);
  void Drop(const std::shared_ptr<PendingRequest>& pending) override RABIT_REQUIRES(step_mutex_);
  void WantCredit(bool wants) override { state_->needs_credit.store(wants); }
  Status EndBackend(const BackendFailure& failure) override;
  void RemoveGroup(const std::shared_ptr<const Group>& group) override;

  // With step_mutex_, which it gives up.
  void DriveLocked(const std::shared_ptr<PendingRequest>& pending, Deadline deadline,
                   int64_t began_ns) RABIT_RELEASES(step_mutex_);
  // False: the engine ends.
  bool Step(Deadline now, Deadline deadline) RABIT_REQUIRES(step_mutex_);
  bool CanPark() const RABIT_REQUIRES(step_mutex_);  // nothing is open and nothing is to be told
  void FinishCore() RABIT_REQUIRES(step_mutex_);     // which has come to its end
  void End();                                        // lanes and commands, after the last step
  void Park();  // until a caller that drives has been gone for a while
  int64_t HandBackNs() const;
  bool TryOwn(BucketJob& job) RABIT_REQUIRES(step_mutex_);
  static void RunOwn(std::vector<OwnJob> own, Deadline deadline);
  void RunCommands() RABIT_REQUIRES(step_mutex_);
  ForcedEnd forced();
  std::string MakeJson(const EngineCore& core) const;
  static void Notify(const Requests& completed);  // without step_mutex_

  const std::shared_ptr<EngineState> state_;
  std::atomic<int64_t> last_drive_ns_{0};
  std::atomic<bool> serves_others_{false};  // as the core says
  std::atomic<bool> has_guessed_{false};    // that whoever submits will wait at once
  std::atomic<int64_t> last_call_ns_{0};    // how long the last call that drove took
  Mutex step_mutex_;
  bool is_running_ RABIT_GUARDED_BY(step_mutex_) = false;
  EngineCore core_ RABIT_GUARDED_BY(step_mutex_);
  std::vector<std::unique_ptr<Lane>> lanes_ RABIT_GUARDED_BY(step_mutex_);
  Deadline last_taken_ RABIT_GUARDED_BY(step_mutex_){};  // when requests came last
  Deadline nap_end_ RABIT_GUARDED_BY(step_mutex_){};
  PendingRequest* driven_ RABIT_GUARDED_BY(step_mutex_) = nullptr;  // of the caller that drives
  Requests completed_ RABIT_GUARDED_BY(step_mutex_);                // whose callbacks are due
  std::vector<OwnJob> own_jobs_ RABIT_GUARDED_BY(step_mutex_);      // in the order of their buckets
  CommandQueue commands_;
  std::atomic<bool> has_ended_{false};
  WakeSignal ended_;
  Mutex force_mutex_;
  ForcedEnd forced_ RABIT_GUARDED_BY(force_mutex_);
  std::string last_json_;  // constant once the thread has ended
};

}  // namespace rabit

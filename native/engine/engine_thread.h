// EngineThread: negotiates what is ready, cuts it into buckets, hands them to the lanes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/command_queue.h"
#include "engine/engine_state.h"
#include "engine/lane.h"
#include "engine/route_memory.h"
#include "engine/slot_table.h"
#include "engine/stall_monitor.h"
#include "engine/stuck_watch.h"
#include "schedule/limit_choice.h"

namespace rabit {

// Run is the body of the engine thread: step after step.  A caller that waits for its own request
// may do the steps instead (Drive): that saves the change to the engine thread and back, which
// costs more than the step.  Afterwards the engine thread leaves the steps to callers for
// some milliseconds, so that the next call finds them free, unless there is something to do at
// once.  The public methods are thread-safe; everything private is touched under step_mutex_.
class EngineThread {
 public:
  explicit EngineThread(std::shared_ptr<EngineState> state);

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

  // Runs `command` on the engine thread and waits for it; false if the thread has ended.
  bool RunCommand(std::function<void()> command, Deadline deadline);
  // Rides on the next announcement; false if the thread has ended.  Of several, the values that are
  // not below zero count, the last of each.
  bool Propose(const Tunables& tunables);
  // In the same way, what would be in force without any proposal.
  bool ResetTunables();
  // Tells the other ranks what this one has turned down, before anything that is submitted later.
  void Refuse(const TensorKey& key, const Status& why);
  // Gives up without the other ranks' consent.  The first reason is kept.
  struct ForcedEnd {
    Status why;   // on this rank
    Status told;  // what the other ranks hear
  };
  void ForceStop(const ForcedEnd& end);
  // Waits until Run has returned.
  bool WaitEnded(Deadline deadline);
  // JSON members about the negotiation; the last ones if the thread has ended.  Empty if it is
  // busy.
  std::string ControllerJson(Deadline deadline);

 private:
  // How long after a call that drove the engine thread leaves the steps to callers.  Each look at
  // the time takes the core from a caller that works, so short times slow down calls in a row. News
  // from other ranks may wait for so long, once, after a rank has stopped making blocking calls.
  // Rank 0 may have to agree for groups that it does not belong to: where there are such, it is
  // only twice as long as the call, so that a row of long calls finds the steps free as well.  Once
  // others have done something without this rank, such as a message between two of them, it is the
  // shortest time.
  static constexpr std::chrono::nanoseconds kHandBackMax = std::chrono::milliseconds(10);
  static constexpr std::chrono::nanoseconds kHandBackMin = std::chrono::microseconds(500);

  struct InFlight {
    std::shared_ptr<const AgreedTensor> tensor;
    int64_t left = 0;  // elements not yet in a bucket
    bool has_last = false;
  };

  // What the caller that drives is to run itself, on a lane that it has claimed.
  struct OwnJob {
    Lane* lane;
    BucketJob job;
  };

  using Requests = std::vector<std::shared_ptr<PendingRequest>>;

  // With step_mutex_, which it gives up.
  void DriveLocked(const std::shared_ptr<PendingRequest>& pending, Deadline deadline,
                   int64_t began_ns) RABIT_RELEASES(step_mutex_);
  bool Step(Deadline deadline) RABIT_REQUIRES(step_mutex_);  // false: the engine ends
  bool CanPark() const RABIT_REQUIRES(step_mutex_);  // nothing is open and nothing is to be told
  void End();                                        // lanes and commands, after the last step
  void Park();  // until a caller that drives has been gone for a while
  int64_t HandBackNs() const;
  bool TryOwn(BucketJob& job) RABIT_REQUIRES(step_mutex_);
  static void RunOwn(std::vector<OwnJob> own, Deadline deadline);
  std::string MakeControllerJson() const RABIT_REQUIRES(step_mutex_);
  void RunCommands();
  void TakeSubmissions() RABIT_REQUIRES(step_mutex_);
  void AnnounceInFull(int32_t token, bool carries) RABIT_REQUIRES(step_mutex_);
  Status AnnounceIfNeeded(Deadline now) RABIT_REQUIRES(step_mutex_);
  Deadline NextDeadline(Deadline now) const RABIT_REQUIRES(step_mutex_);
  bool FailIfSuspected(Deadline now) RABIT_REQUIRES(step_mutex_);
  void CheckStall(Deadline now) RABIT_REQUIRES(step_mutex_);

  void Process(Agreement agreement, Deadline now) RABIT_REQUIRES(step_mutex_);
  Status ApplyTunables(const Tunables& tunables) RABIT_REQUIRES(step_mutex_);
  void Merge(const Tunables& tunables) RABIT_REQUIRES(step_mutex_);  // into the next announcement
  // What has been agreed is in flight from here on.  Returns what the scheduler is to know of it.
  ScheduledTensors Accept(const Agreement& agreement, int64_t now_ns) RABIT_REQUIRES(step_mutex_);
  void ObserveRound(const ReadyTensor& ready, int64_t count) RABIT_REQUIRES(step_mutex_);
  void Reject(const Rejection& rejection) RABIT_REQUIRES(step_mutex_);
  int64_t CutMultipleOf(const ReadyTensor& ready) const;
  void NoteNegotiated(const ReadyTensor& ready, const PendingRequest& request, int64_t now_ns)
      RABIT_REQUIRES(step_mutex_);
  void FinishVote(const ReadyTensor& ready, int32_t token, int64_t now_ns)
      RABIT_REQUIRES(step_mutex_);
  void FinishCarried(const ReadyTensor& ready, int32_t token, int64_t now_ns)
      RABIT_REQUIRES(step_mutex_);
  void FinishJoin(int last_joined) RABIT_REQUIRES(step_mutex_);
  void Dispatch(Bucket bucket) RABIT_REQUIRES(step_mutex_);
  // The caller's own request, with its hold; null: this rank has none.
  std::shared_ptr<PendingRequest> TakeOpen(int32_t token) RABIT_REQUIRES(step_mutex_);

  void Drop(const std::shared_ptr<PendingRequest>& pending) RABIT_REQUIRES(step_mutex_);
  static void Notify(const Requests& completed);  // without step_mutex_
  void Fail(const Status& why) RABIT_REQUIRES(step_mutex_);
  void FinishOpen(const Status& why) RABIT_REQUIRES(step_mutex_);

  const std::shared_ptr<EngineState> state_;
  std::atomic<int64_t> last_drive_ns_{0};
  std::atomic<bool> serves_others_{false};  // something was agreed that it takes no part in
  std::atomic<int64_t> last_call_ns_{0};    // how long the last call that drove took
  Mutex step_mutex_;
  bool is_running_ RABIT_GUARDED_BY(step_mutex_) = false;
  PendingRequest* driven_ RABIT_GUARDED_BY(step_mutex_) = nullptr;  // of the caller that drives
  bool is_driven_agreed_ RABIT_GUARDED_BY(step_mutex_) = false;
  Requests completed_ RABIT_GUARDED_BY(step_mutex_);            // whose callbacks are due
  std::vector<OwnJob> own_jobs_ RABIT_GUARDED_BY(step_mutex_);  // in the order of their buckets
  StallMonitor stall_monitor_ RABIT_GUARDED_BY(step_mutex_);
  CommandQueue commands_;
  std::atomic<bool> has_ended_{false};
  WakeSignal ended_;
  Mutex force_mutex_;
  ForcedEnd forced_ RABIT_GUARDED_BY(force_mutex_);
  std::string last_json_;  // constant once the thread has ended

  // What the steps work on.
  std::vector<std::unique_ptr<Lane>> lanes_ RABIT_GUARDED_BY(step_mutex_);
  Announcement next_ RABIT_GUARDED_BY(step_mutex_);
  bool has_repeated_ RABIT_GUARDED_BY(step_mutex_) = false;  // something that is not in next_.ready
  std::vector<Announcement::Entry> spare_entries_
      RABIT_GUARDED_BY(step_mutex_);  // kept for their memory
  SlotTable<std::shared_ptr<PendingRequest>> open_
      RABIT_GUARDED_BY(step_mutex_);                             // by token; not yet agreed
  SlotTable<InFlight> in_flight_ RABIT_GUARDED_BY(step_mutex_);  // agreed, not yet issued
  // Of the last agreement, for those that repeat it.
  ReadyTensors last_ready_ RABIT_GUARDED_BY(step_mutex_);
  ScheduledTensors last_scheduled_ RABIT_GUARDED_BY(step_mutex_);
  std::vector<std::shared_ptr<PendingRequest>> joins_ RABIT_GUARDED_BY(step_mutex_);
  uint64_t issued_ RABIT_GUARDED_BY(step_mutex_) = 0;  // buckets
  uint64_t chain_ RABIT_GUARDED_BY(step_mutex_) = 0;   // of the contents of all of them, in order
  StuckWatch stuck_watch_ RABIT_GUARDED_BY(step_mutex_);
  RouteMemory routes_ RABIT_GUARDED_BY(step_mutex_);
  uint64_t tunings_ RABIT_GUARDED_BY(step_mutex_) = 0;
  int64_t negotiated_ RABIT_GUARDED_BY(step_mutex_) = 0;  // tensors of the agreement at hand
  int64_t negotiation_ns_ RABIT_GUARDED_BY(step_mutex_) = 0;
  const ScheduleLimits start_limits_;
  std::optional<LimitChoice> choice_
      RABIT_GUARDED_BY(step_mutex_);  // rank 0; paused while the sizes are somebody's proposal
  uint64_t announced_done_ RABIT_GUARDED_BY(step_mutex_) = 0;
  bool wants_stop_ RABIT_GUARDED_BY(step_mutex_) = false;
  bool has_announced_stop_ RABIT_GUARDED_BY(step_mutex_) = false;
  Deadline next_stall_check_ RABIT_GUARDED_BY(step_mutex_){};
  Deadline grace_end_ RABIT_GUARDED_BY(step_mutex_) = Deadline::max();
  Status grace_for_ RABIT_GUARDED_BY(step_mutex_);
};

}  // namespace rabit

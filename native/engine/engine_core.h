// EngineCore: the replicated state machine of one rank: what is open, agreed and issued.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_writer.h"
#include "base/log.h"
#include "codec/codec.h"
#include "control/controller.h"
#include "engine/bucket_job.h"
#include "engine/caller_watch.h"
#include "engine/done_counter.h"
#include "engine/engine_parts.h"
#include "engine/failure_board.h"
#include "engine/group_table.h"
#include "engine/record.h"
#include "engine/route_memory.h"
#include "engine/running_work.h"
#include "engine/slot_table.h"
#include "engine/stall_monitor.h"
#include "engine/statistics.h"
#include "engine/stuck_watch.h"
#include "route/router.h"
#include "schedule/limit_choice.h"
#include "schedule/scheduler.h"

namespace rabit {

// What a core stands on; all of it outlives the core.  Controller and scheduler are its own, the
// rest is thread-safe and shared with the lanes and with ordered calls.
struct CoreServices {
  int rank = 0;
  int size = 1;
  const EngineOptions& options;
  int32_t all_lanes = 0;  // of all classes; what comes behind them is for ordered calls
  Controller& controller;
  Scheduler& scheduler;
  const Router& router;
  CodecSet& codecs;
  const Logger& logger;
  GroupTable& groups;
  DoneCounter& done;
  RunningWork& running;
  const CallerWatch& callers;
  std::atomic<bool>& has_ordered;  // see StuckWatch
  Statistics& statistics;
  Record& record;
};

// What follows from the core's decisions; it calls these from within its own methods.
class CoreOutput {
 public:
  virtual ~CoreOutput() = default;
  // A bucket in which this rank takes part.  They come in the order of their ids.
  virtual void Run(BucketJob job) = 0;
  // The core's hold of `pending` goes.
  virtual void Drop(const std::shared_ptr<PendingRequest>& pending) = 0;
  // Whether anything waits for credit from here on.  Said before the buckets that are issued at the
  // same time are run: whoever finishes one must know already that somebody waits for it.
  virtual void WantCredit(bool wants) = 0;
  // What runs on the backend ends, here and on all other ranks.  Not OK: that ends the engine.
  virtual Status EndBackend(const BackendFailure& failure) = 0;
  // A group that was removed, of which nothing runs on this rank any more.
  virtual void RemoveGroup(const std::shared_ptr<const Group>& group) = 0;
};

// No thread, no lock, no clock: whoever owns it gives it what has been submitted, lets it announce,
// awaits the next agreement and gives it that as well; the time is an argument.  So a core does the
// same whenever it is told the same, on the engine thread and in a simulation.
class EngineCore {
 public:
  using Requests = std::vector<std::shared_ptr<PendingRequest>>;

  // Gives up without the other ranks' consent.
  struct ForcedEnd {
    Status why;   // on this rank
    Status told;  // what the other ranks hear
  };

  // `output` outlives it.
  EngineCore(const CoreServices& services, CoreOutput& output);

  // Takes over the submitter's hold of each.
  void Submit(Requests batch);
  // This rank has turned a request down before it was submitted.
  void Refuse(const TensorKey& key, const Status& why) { services_.controller.Refuse(key, why); }
  void AddGroup(const Group& group) { services_.controller.AddGroup(group); }
  // Rides on the next announcement.  Of several, the values that are not below zero count, the last
  // of each.
  void Propose(const Tunables& tunables);
  // In the same way, what would be in force without any proposal.
  void ResetTunables();

  // Tells the other ranks what is new.  With `wants_stop` nothing is submitted any more.
  void Announce(bool wants_stop, Deadline now);
  // When to go on though no agreement has come.
  Deadline NextDeadline(Deadline now) const;
  // What Controller::Await has brought.
  void Process(Result<std::optional<Agreement>> agreement, Deadline now);
  // What lanes suspect, and what has been open for too long.
  void Watch(const std::vector<Suspicion>& suspicions, Deadline now);
  void GiveUp(const ForcedEnd& end);

  // Ok as long as it runs; then why it does not, and nothing but FinishOpen and questions may
  // follow.  An agreed stop is an end, but no failure.
  const Status& end() const { return end_; }
  bool has_failed() const { return has_failed_; }
  // Everything that has not been issued ends with `why`.
  void FinishOpen(const Status& why);

  bool is_idle() const;  // nothing is open, and nobody is under suspicion
  // Something was agreed in which this rank takes no part.
  bool serves_others() const { return serves_others_; }
  void WriteStatistics(JsonWriter& json) const;  // members of an object

  // Equal on all ranks after the same agreements.
  uint64_t issued() const { return issued_.total(); }
  uint64_t chain() const { return chain_; }

 private:
  struct InFlight {
    std::shared_ptr<const AgreedTensor> tensor;
    int64_t left = 0;  // elements not yet in a bucket
    bool has_last = false;
  };

  // engine_core.cc: what this rank says, and how it ends.
  bool Carries(const Request& request) const;
  void AddEntry(int32_t token, bool carries);  // to the next announcement
  bool HasNews(const BucketCounts& done) const;
  void ReleaseGroups(const BucketCounts& done);
  bool IsInUse(GroupId group) const;     // something of it is open, or agreed and not issued
  void Merge(const Tunables& tunables);  // into the next announcement
  void Fail(const Status& why);
  std::string NameOf(BackendId backend) const;
  void CheckStall(Deadline now);

  // core_agreement.cc: what follows from an agreement.
  void CarryOut(Agreement agreement, Deadline now);
  Status EndBackend(const BackendFailure& failure);
  Status ApplyTunables(const Tunables& tunables);
  // What has been agreed is in flight from here on.  Returns what the scheduler is to know of it.
  Result<ScheduledTensors> Accept(const Agreement& agreement, int64_t now_ns);
  void ObserveRound(const ReadyTensor& ready, int64_t count);
  void Reject(const Rejection& rejection);
  Result<int64_t> CutMultipleOf(const ReadyTensor& ready) const;
  bool IsOfAll(const ReadyTensor& ready) const;
  void NoteNegotiated(const ReadyTensor& ready, PendingRequest& request, int64_t now_ns);
  void FinishVote(const ReadyTensor& ready, int32_t token, int64_t now_ns);
  void FinishCarried(const ReadyTensor& ready, int32_t token, int64_t now_ns);
  void FinishJoin(int last_joined);
  // No thread that submits does anything else than wait for what is not agreed.
  bool AreCallersStuck(int64_t now_ns) const;
  void Dispatch(Bucket bucket);
  // This rank's request, with its hold; null: it has none.
  std::shared_ptr<PendingRequest> TakeOpen(int32_t token);

  const CoreServices services_;
  CoreOutput& output_;

  // What this rank is about to say.
  Announcement next_;
  std::vector<Announcement::Entry> spare_entries_;   // kept for their memory
  SlotTable<std::shared_ptr<PendingRequest>> open_;  // by token; not yet agreed
  Requests joins_;
  BucketCounts announced_done_;
  bool has_announced_stop_ = false;
  bool wants_credit_ = false;

  // What has been agreed.
  SlotTable<InFlight> in_flight_;  // not yet issued
  ReadyTensors last_ready_;        // of the last agreement, for those that repeat it
  ScheduledTensors last_scheduled_;
  BucketCounts issued_;
  uint64_t chain_ = 0;  // of the contents of all of them, in order
  RouteMemory routes_;
  struct RemovedGroup {
    std::shared_ptr<const Group> group;
    // Buckets until it was no longer in use: it runs nowhere when these are done.
    std::optional<BucketCounts> last;
  };
  std::vector<RemovedGroup> removed_groups_;
  bool serves_others_ = false;
  uint64_t rounds_ = 0;     // operations that were agreed, ever
  int64_t negotiated_ = 0;  // tensors of the agreement at hand
  int64_t negotiation_ns_ = 0;

  // How it is scheduled.
  const ScheduleLimits start_limits_;
  std::optional<LimitChoice> choice_;  // rank 0; paused while the sizes are somebody's proposal
  uint64_t tunings_ = 0;

  // What may go wrong.
  StallMonitor stall_monitor_;
  StuckWatch stuck_watch_;
  Deadline next_stall_check_{};
  struct Grace {
    Status suspicion;
    Deadline end;  // max: the other ranks have been told
  };
  std::map<FailureScope, Grace> graces_;
  std::vector<BackendFailure> failed_backends_;
  uint32_t avoided_backends_ = 0;  // the same, as in Work
  Status end_;
  bool has_failed_ = false;
};

}  // namespace rabit

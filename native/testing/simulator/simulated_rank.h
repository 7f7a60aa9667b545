// SimulatedRank: the real core and the real controller of one rank, and what surrounds them.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "control/channel_controller.h"
#include "engine/engine_core.h"
#include "schedule/lane_classes.h"
#include "testing/simulator/caller.h"
#include "testing/simulator/virtual_lanes.h"
#include "testing/simulator/virtual_network.h"

namespace rabit::testing {

// What the ranks of a job share; outlives them.
struct SimulatedWorld {
  VirtualTime& time;
  Dice& dice;
  VirtualNetwork& network;
  VirtualLanes& lanes;
  const RankTree& tree;
  const Program& program;
  const Router& router;
  CodecSet& codecs;
  EngineOptions engine;
  ControllerOptions controller;
  ScheduleLimits limits;
  LaneClassOptions classes;
  int32_t all_lanes() const { return engine.lanes * static_cast<int32_t>(classes.names.size()); }
  bool is_fifo = false;
  std::function<void(const std::string& what)> violate;
};

// Does what EngineLoop does, without a thread: a step when something has come, and one when the
// time has come that the last one would have waited until.
class SimulatedRank final : private CoreOutput, private CallerPort {
 public:
  SimulatedRank(SimulatedWorld& world, int rank, const Caller::Options& caller,
                int reaction_us_max);

  void Begin() { caller_.Begin(); }
  void OnArrival() { Wake(); }  // of a message

  // What lanes report; see LaneOutcome.
  void OnBegun(const BucketJob& job);
  void OnDone(BucketJob job, const Status& status);
  void OnSuspicion(const Status& suspicion);

  // What may happen to a rank.
  void Die();
  void Freeze(Deadline until) { frozen_until_ = until; }
  void FallSilent() { caller_.FallSilent(); }
  void Abort();
  void Propose(const Tunables& tunables);

  bool is_dead() const { return is_dead_; }
  bool has_ended() const { return has_ended_; }
  const EngineCore& core() const { return core_; }
  const Caller& caller() const { return caller_; }
  std::string Describe() const;

 private:
  // CoreOutput
  void Run(BucketJob job) override { world_.lanes.Push(rank_, std::move(job)); }
  void Drop(const std::shared_ptr<PendingRequest>& pending) override;
  void WantCredit(bool wants) override { wants_credit_ = wants; }
  Status EndBackend(const BackendFailure& failure) override { return failure.why; }
  void RemoveGroup(const std::shared_ptr<const Group>& group) override {
    groups_.Forget(group->id);
  }
  // CallerPort
  void Submit(EngineCore::Requests batch) override;
  void Tell(CommandQueue::Command command) override;
  void Stop() override;
  void Violate(const std::string& what) override;

  void Wake();
  void StepAt(Deadline when);
  void Step();
  void End();

  SimulatedWorld& world_;
  const int rank_;
  const int reaction_us_max_;
  const Logger logger_{LogLevel::kOff};
  Statistics statistics_;
  GroupTable groups_;
  Record record_;
  DoneCounter done_;
  RunningWork running_;
  CallerWatch callers_;  // has none: callers of a simulation are no threads
  std::atomic<bool> has_ordered_{false};
  const std::unique_ptr<Controller> controller_;
  const std::unique_ptr<Scheduler> scheduler_;
  EngineCore core_;
  Caller caller_;

  EngineCore::Requests submitted_;
  std::vector<CommandQueue::Command> commands_;
  std::vector<Suspicion> suspicions_;
  EngineCore::ForcedEnd forced_;
  bool wants_stop_ = false;
  bool wants_credit_ = false;
  bool is_dead_ = false;
  bool has_ended_ = false;
  Deadline frozen_until_{};
  Deadline next_step_ = Deadline::max();
  uint64_t plan_ = 0;  // of the next step; the event of an older one does nothing
};

}  // namespace rabit::testing

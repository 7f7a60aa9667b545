#include "testing/simulator/simulated_rank.h"

#include <algorithm>
#include <utility>

#include "schedule/fifo_scheduler.h"
#include "schedule/priority_scheduler.h"

namespace rabit::testing {

SimulatedRank::SimulatedRank(SimulatedWorld& world, int rank, const Caller::Options& caller,
                             int reaction_us_max)
    : world_(world),
      rank_(rank),
      reaction_us_max_(reaction_us_max),
      groups_(rank, world.tree.size()),
      record_(rank, logger_, statistics_.clock()),
      running_(world.all_lanes()),
      controller_(
          MakeController(world.network.Connect(rank), world.tree, world.controller, world.time)),
      scheduler_(world.is_fifo ? MakeFifoScheduler(world.limits, world.classes)
                               : MakePriorityScheduler(world.limits, world.classes)),
      core_({rank, world.tree.size(), world.engine, world.all_lanes(), *controller_, *scheduler_,
             world.router, world.codecs, logger_, groups_, done_, running_, callers_, has_ordered_,
             statistics_, record_},
            *this),
      caller_(caller, world.program, world.time, world.dice, groups_, *this) {}

void SimulatedRank::Wake() {
  StepAt(world_.time.Now() + world_.dice.MicrosBelow(reaction_us_max_ + 1));
}

void SimulatedRank::StepAt(Deadline when) {
  when = std::max(when, frozen_until_);
  if (is_dead_ || has_ended_ || when >= next_step_) return;
  next_step_ = when;
  world_.time.At(when, [this, plan = ++plan_] {
    if (plan == plan_ && !is_dead_ && !has_ended_) Step();
  });
}

// As EngineLoop::Step.
void SimulatedRank::Step() {
  const Deadline now = world_.time.Now();
  if (now < frozen_until_) {
    next_step_ = Deadline::max();
    return StepAt(frozen_until_);
  }
  next_step_ = Deadline::max();
  core_.Submit(std::exchange(submitted_, {}));
  for (auto& command : std::exchange(commands_, {})) command(core_);
  core_.Announce(wants_stop_, now);
  bool has_agreement = false;
  if (core_.end().ok()) {
    auto agreement = controller_->Await(core_.NextDeadline(now));
    has_agreement = agreement.ok() && agreement->has_value();
    core_.Process(std::move(agreement), now);
    if (core_.end().ok() && !forced_.why.ok()) core_.GiveUp(forced_);
    if (core_.end().ok()) core_.Watch(suspicions_, now);
  }
  if (!core_.end().ok()) return End();
  if (has_agreement) return Wake();
  StepAt(std::max(world_.network.waits_until(rank_), now + std::chrono::microseconds(1)));
}

// As EngineLoop::FinishCore; later, whoever used the engine closes it.
void SimulatedRank::End() {
  has_ended_ = true;
  const Status& why = core_.end();
  caller_.End(core_.has_failed());
  if (core_.has_failed()) world_.lanes.Abort(rank_, why);
  core_.Submit(std::exchange(submitted_, {}));
  core_.FinishOpen(why);
  if (caller_.open_count() > 0) Violate("has ended, and left requests open: " + caller_.Describe());
  world_.time.In(world_.dice.MicrosBelow(20'000), [this] {
    if (is_dead_) return;
    world_.network.Leave(rank_);
    world_.lanes.Lose(rank_);
  });
}

void SimulatedRank::OnBegun(const BucketJob& job) {
  running_.Enter(job.bucket.lane,
                 {ScheduleDigest::BucketsOf(job.bucket.lane_class), job.bucket.id, job.hash, {}},
                 [id = job.bucket.id] { return "bucket " + std::to_string(id); });
}

// As Lane::RunJob after the exchange.
void SimulatedRank::OnDone(BucketJob job, const Status& status) {
  running_.Leave(job.bucket.lane, job.bucket.id);
  done_.MarkDone(job.bucket.lane_class, job.bucket.id);
  for (BucketItem& item : job.items) {
    const std::shared_ptr<PendingRequest>& request = item.tensor->request;
    if (request == nullptr) continue;
    if (status.ok()) caller_.OnExchanged(*request, item.partition.count);
    if (!status.ok()) request->SetError(status);
    Drop(request);
  }
  if (wants_credit_ || wants_stop_) Wake();
}

void SimulatedRank::OnSuspicion(const Status& suspicion) {
  if (suspicions_.empty()) suspicions_.push_back({kWholeEngine, suspicion});
  Wake();
}

void SimulatedRank::Drop(const std::shared_ptr<PendingRequest>& pending) {
  if (!pending->DropHold()) return;
  pending->Finish();  // stops the process if it is the second time
  caller_.OnFinished(*pending);
}

void SimulatedRank::Submit(EngineCore::Requests batch) {
  std::move(batch.begin(), batch.end(), std::back_inserter(submitted_));
  Wake();
}

void SimulatedRank::Tell(CommandQueue::Command command) {
  commands_.push_back(std::move(command));
  Wake();
}

void SimulatedRank::Stop() {
  wants_stop_ = true;
  Wake();
}

void SimulatedRank::Violate(const std::string& what) {
  world_.violate("rank " + std::to_string(rank_) + ": " + what);
}

void SimulatedRank::Die() {
  is_dead_ = true;
  caller_.End(true);
  world_.network.Kill(rank_);
  world_.lanes.Lose(rank_);
}

void SimulatedRank::Abort() {
  const std::string text = "rank " + std::to_string(rank_) + " is ending";
  forced_ = {Aborted(text).WithCulprit(rank_), PeerLost(rank_, text)};
  Wake();
}

void SimulatedRank::Propose(const Tunables& tunables) {
  Tell([tunables](EngineCore& core) { core.Propose(tunables); });
}

std::string SimulatedRank::Describe() const {
  std::string text = "rank " + std::to_string(rank_) + " is not through: " + caller_.Describe();
  if (wants_stop_) text += ", wants to stop";
  for (const std::string& line : controller_->Waiting()) text += "\n  " + line;
  return text;
}

}  // namespace rabit::testing

// Engine: the background thread, its lanes and its handles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/device/device.h"
#include "base/group.h"
#include "base/log.h"
#include "base/result.h"
#include "codec/codec.h"
#include "control/controller.h"
#include "engine/request.h"
#include "route/router.h"
#include "schedule/scheduler.h"

namespace rabit {

struct EngineOptions {
  int32_t lanes = 2;                 // of each class
  int64_t operation_timeout_ms = 0;  // of one bucket on a lane; 0: as long as all peers live
  int64_t stall_warning_ms = 10'000;
  // Of the controller, which ends the job then; named in warnings.
  int64_t stall_abort_ms = 1'800'000;
  size_t queue_capacity = 1 << 20;  // requests in flight
  int64_t spin_us = 0;              // before a waiter sleeps; 0 where threads outnumber cores
  LogLevel log_level = LogLevel::kWarning;
  int64_t inline_bytes = 0;   // blocking calls up to this size are negotiated with their data
  size_t pinned_bytes = size_t{1} << 30;  // of the host's memory, for tensors on devices, at most
  std::string operation_log;  // the file that gets a line for each operation; empty: none
  std::string record;         // the file of the record, which exists; empty: none
  int64_t epoch = 1;          // of this engine, for the record
  bool chooses_limits = false;  // rank 0 derives the scheduler's sizes from what it measures
};

struct EngineParts {  // everything is passed in; tests pass fakes
  // What the parts below stand on (listener, store).  A lane that is left behind keeps both alive,
  // so it is destroyed after them, whoever is the last.
  std::shared_ptr<const void> ground;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // its place among the ranks of its host
  EngineOptions options;
  std::unique_ptr<Controller> controller;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<const Router> router;
  // By Route::executor.  A request can name those of which the router knows.
  std::vector<std::unique_ptr<Backend>> backends;
  std::unique_ptr<CodecSet> codecs;
  // The driver of tensors on a device, loaded when there is the first; empty: there is none.
  std::function<Result<std::shared_ptr<DeviceDriver>>()> open_driver;

  int32_t all_lanes() const { return options.lanes * scheduler->classes(); }
};

struct HandleOutput {
  TensorView view;
  std::vector<int64_t> shape;
  std::vector<int64_t> received_splits;  // alltoall; rows from each rank
};

// One operation that needs no negotiation (Engine::RunOrdered).
struct OrderedCall {
  // kAllreduce, kBroadcast, kAllgather, kReduceScatter, kAlltoall (equal parts) or kBarrier.
  Kind kind = Kind::kAllreduce;
  TensorView input;   // broadcast: unused
  TensorView output;  // may be the input where both have one size
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root = -1;  // global rank
  GroupId group = kWorld;
  BackendId backend = kAnyBackend;
};

// Thread-safe.  All methods return at once unless they say that they wait.
class Engine {
 public:
  virtual ~Engine() = default;  // stops with a short deadline if Stop was not called

  static Result<std::unique_ptr<Engine>> Start(EngineParts parts);

  // All or none: a duplicate name or a bad argument enqueues nothing.  Never waits for the network.
  // The requests of one call become ready together.
  virtual Status Submit(std::span<Request> requests, std::span<Handle> handles) = 0;
  // Submit and Wait in one, for one request: while it waits, this thread does the engine's work.
  // kTimedOut leaves the handle open; a request that is refused has the handle 0.
  virtual Status Run(Request request, Handle& handle, Deadline deadline) = 0;
  // Waits.  kTimedOut leaves the handle open; any other status is the operation's own.
  virtual Status Wait(Handle handle, Deadline deadline) = 0;
  // The same, by a caller that waits without an end and looks up at times, to see signals.
  virtual Status WaitSlice(Handle handle, Deadline deadline) = 0;
  // Waits until one of `handles` has finished, well or not, and returns its place; the first of
  // several.  `news`: null, or how many operations had finished when the caller looked last; then
  // it returns -1 as well as soon as there are more, and says how many.  kTimedOut at the deadline.
  virtual Result<int> WaitAny(std::span<const Handle> handles, uint64_t* news,
                              Deadline deadline) = 0;
  // Waits until what is left to do for the result is in the hands of a device, if not until it is
  // there: what is put on `stream`, of the request's device, from here on comes after it, and
  // Output tells where it will be.  What fails later, Wait tells, and so does the next call for new
  // work. kTimedOut leaves the handle open.
  virtual Status WaitOnStream(Handle handle, uint64_t stream, Deadline deadline) = 0;
  // True when finished, well or not.
  virtual Result<bool> IsDone(Handle handle) const = 0;
  // Only after a successful Wait or WaitOnStream; valid until Release.
  virtual Result<HandleOutput> Output(Handle handle) const = 0;
  // Frees a finished handle; an open one is freed as soon as it finishes.
  virtual void Release(Handle handle) = 0;

  // The caller turns this request down before it is submitted, as Submit and Run do themselves with
  // one that they refuse: the other ranks of its group fail that round with `why`.
  virtual void Refuse(const Request& request, const Status& why) = 0;

  // Runs an operation on the calling thread, at once: nothing is negotiated, so every member of the
  // group must make the same ordered calls, in the same order.  Waits until it is done; calls of
  // several threads run one after the other, whatever their groups: where ranks share several
  // groups, the order is one over all of them.  A failure or a passed deadline fails the engine,
  // because the ranks no longer agree about what is on the wire; calls that differ between the
  // ranks are never combined, they end in kMismatch or at the deadline.
  virtual Status RunOrdered(const OrderedCall& call, Deadline deadline) = 0;

  // Collective: every rank calls it with the same ranks in the same order.  Waits until all did.
  // After kTimedOut it is still under way: the same call again goes on waiting for it, and any
  // other one waits for it first.
  virtual Result<GroupId> AddGroup(std::span<const int> ranks, Deadline deadline) = 0;
  // Collective: every rank calls it, in any order.  Waits until all did; after kTimedOut it is still
  // under way, and the same call again goes on waiting for it.  What ran in the group must be over:
  // backends give back what they keep for it.
  virtual Status RemoveGroup(GroupId group, Deadline deadline) = 0;
  virtual Result<Group> GetGroup(GroupId group) const = 0;
  // Collective: every rank of the group calls it with the same text (TreePlan::Parse); empty: no
  // plan.  Waits until all did.  What the group exchanges follows the plan from one agreement on,
  // which is the same on all ranks, whatever is in flight; ordered calls follow it after this
  // returns.  kMismatch names a rank whose text differs.
  virtual Status SetPlan(GroupId group, std::string_view text, Deadline deadline) = 0;

  // Rank 0 only.  Every rank cuts, joins and holds back so from the next agreement on, whatever is
  // in flight.  Returns before that; StatisticsJson tells what is in force, and how often it
  // changed.
  virtual Status Propose(const Tunables& tunables) = 0;
  // Rank 0 only, in the same way: every rank schedules as if nothing had been proposed.
  virtual Status ResetTunables() = 0;

  virtual Status StartTimeline(const std::string& path, bool mark_cycles) = 0;
  virtual Status StopTimeline() = 0;
  virtual std::string StatisticsJson() const = 0;

  // This rank ends because of `reason` ("ValueError: no such file"): every other rank fails with a
  // text that names both, and this one's open handles get kAborted.  Waits until the others have
  // been told, and the lanes have ended, or for the deadline.  Nothing happens to an engine that
  // has stopped or failed.
  virtual void Abort(const std::string& reason, Deadline deadline) = 0;

  // Waits until every rank has called Stop, then stops; open handles get kAborted.  Idempotent.
  virtual Status Stop(Deadline deadline) = 0;
  // True once no thread of the engine uses its parts any more.
  virtual bool HasEnded() const = 0;
};

}  // namespace rabit

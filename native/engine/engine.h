// Engine: the background thread, its lanes and its handles.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/group.h"
#include "base/result.h"
#include "engine/engine_parts.h"
#include "engine/request.h"

namespace rabit {

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
  // The same of anything else that all ranks exchange on the stream of ordered calls.
  virtual Status RunOrdered(const std::string& what, const std::function<Status()>& exchange) = 0;

  // Collective: every rank calls it with the same ranks in the same order.  Waits until all did.
  // After kTimedOut it is still under way, and the others wait until this rank goes on with the
  // same call; any other one waits for it first.
  virtual Result<GroupId> AddGroup(std::span<const int> ranks, Deadline deadline) = 0;
  // Collective: every rank calls it, in any order.  Waits until all did; after kTimedOut it is
  // still under way, and the same call again goes on waiting for it.  What ran in the group must be
  // over: backends give back what they keep for it.
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

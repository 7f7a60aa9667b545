// GroupCalls: groups that all ranks add and remove together.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/wake_signal.h"
#include "engine/engine.h"
#include "engine/engine_loop.h"
#include "engine/engine_state.h"

namespace rabit {

// A group comes and goes by requests of the engine's own.  Every rank's list of ranks is gathered
// first: ids are equal on all ranks only if all add the same groups in the same order, and a
// difference shows here instead of as a hang later.  Each rank then takes the group into its
// backends and its controller, and votes: no rank names a group before all ranks know it, and none
// keeps one that some rank could not take.  A group goes with the agreement of a vote as well.  A
// call whose deadline passes is still under way, because the other ranks may have succeeded: the
// same call again goes on with it.  Thread-safe; one Add at a time.
class GroupCalls {
 public:
  // `engine` outlives it.
  GroupCalls(Engine& engine, std::shared_ptr<EngineState> state, std::shared_ptr<EngineLoop> loop)
      : engine_(engine), state_(std::move(state)), loop_(std::move(loop)) {}
  ~GroupCalls();

  // See Engine::AddGroup and Engine::RemoveGroup.
  Result<GroupId> Add(std::span<const int> ranks, Deadline deadline);
  Status Remove(GroupId group, Deadline deadline);

 private:
  // A group that all ranks have agreed on, on its way into this engine.
  struct Definition {
    std::shared_ptr<const Group> group;
    Status status;  // constant once it is done
    std::atomic<bool> is_done{false};
    WakeSignal done;
  };
  // An Add whose deadline may have passed.
  struct Pending {
    std::vector<int> ranks;
    std::unique_ptr<std::vector<int32_t>> message;
    Handle handle;
    std::shared_ptr<Definition> definition;  // null: some rank has not called it yet
    std::thread definer;
    Handle vote;  // 0: this rank has not taken it yet
  };

  // A Remove that some rank may not have called yet.
  struct Removal {
    Handle vote;
    std::optional<Status> end;  // under removals_mutex_
  };

  Status Begin(std::vector<int> mine) RABIT_REQUIRES(mutex_);
  Result<GroupId> Finish(Deadline deadline) RABIT_REQUIRES(mutex_);
  Status Agree(Deadline deadline) RABIT_REQUIRES(mutex_);
  Status Take(Deadline deadline) RABIT_REQUIRES(mutex_);
  Result<Handle> SubmitVote(const std::string& name, int64_t bits);
  static void Define(EngineState& state, EngineLoop& loop, Definition& definition);
  static Status TakeIntoBackends(EngineState& state, const Group& group);
  Status CheckSameRanks(const std::vector<int>& mine, std::span<const int32_t> all) const;
  std::vector<int32_t> ValuesOf(Handle handle) const;  // of a finished request
  // A removal, which may have begun in an earlier call.
  Result<std::shared_ptr<Removal>> BeginRemoval(GroupId group);
  // What a request has ended with; none at the deadline.
  std::optional<Status> EndOf(Handle handle, Deadline deadline) const;
  std::string Where() const { return "rank " + std::to_string(state_->parts.rank); }

  Engine& engine_;
  // Threads that define a group may outlive the call, and the engine.
  const std::shared_ptr<EngineState> state_;
  const std::shared_ptr<EngineLoop> loop_;
  Mutex mutex_;  // held during an Add
  std::optional<Pending> pending_ RABIT_GUARDED_BY(mutex_);
  // Nobody waits with this one: threads may remove groups in any order.
  Mutex removals_mutex_;
  std::map<GroupId, std::shared_ptr<Removal>> removals_ RABIT_GUARDED_BY(removals_mutex_);
};

}  // namespace rabit

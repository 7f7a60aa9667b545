// GroupCalls: groups that all ranks add and remove together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"
#include "engine/engine_loop.h"
#include "engine/engine_state.h"

namespace rabit {

// Every rank's list of ranks is gathered first, by a request of the engine's own: ids are equal on
// all ranks only if all add the same groups in the same order, and a difference shows here instead
// of as a hang later.  Thread-safe; one call at a time.
class GroupCalls {
 public:
  // `engine` and `loop` outlive it.
  GroupCalls(Engine& engine, std::shared_ptr<EngineState> state, EngineLoop& loop)
      : engine_(engine), state_(std::move(state)), loop_(loop) {}

  // See Engine::AddGroup and Engine::RemoveGroup.
  Result<GroupId> Add(std::span<const int> ranks, Deadline deadline);
  Status Remove(GroupId group, Deadline deadline);

 private:
  // An Add that some rank has not called yet.  It outlasts a call whose deadline has passed: the
  // others may have succeeded, and count on.
  struct Pending {
    std::vector<int> ranks;
    std::unique_ptr<std::vector<int32_t>> message;
    Handle handle;
  };

  Status Begin(std::vector<int> mine) RABIT_REQUIRES(mutex_);
  Result<GroupId> Finish(Deadline deadline) RABIT_REQUIRES(mutex_);
  Result<GroupId> Define(const std::shared_ptr<const Group>& group, Deadline deadline);
  Status CheckSameRanks(const std::vector<int>& mine, std::span<const int32_t> all) const;
  std::vector<int32_t> ValuesOf(Handle handle) const;  // of a finished request
  std::string Where() const { return "rank " + std::to_string(state_->parts.rank); }

  Engine& engine_;
  // What the engine thread is told may be heard after a call, and an engine, has ended.
  const std::shared_ptr<EngineState> state_;
  EngineLoop& loop_;
  Mutex mutex_;
  uint64_t calls_ RABIT_GUARDED_BY(mutex_) = 0;
  std::optional<Pending> pending_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

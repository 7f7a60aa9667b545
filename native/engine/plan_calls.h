// PlanCalls: plans that all ranks of a group put in force together.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/tree_plan.h"
#include "engine/engine.h"
#include "engine/engine_state.h"

namespace rabit {

// The ranks compare what they were given first. Then they vote, and an agreement is the same moment
// on each: all that is agreed afterwards follows the plan, whatever is in flight.  Thread-safe; one
// call at a time.
class PlanCalls {
 public:
  // `engine` outlives it.
  PlanCalls(Engine& engine, EngineState& state) : engine_(engine), state_(state) {}

  // See Engine::SetPlan.
  Status Set(GroupId group, std::string_view text, Deadline deadline);

 private:
  // False: a rank has joined, and takes no part.
  Result<bool> Compare(const Group& group, std::string_view text, const std::string& name,
                       Deadline deadline) RABIT_REQUIRES(mutex_);
  // Runs one request of the engine's own; *values gets its result.
  Status RunOwn(Request request, int64_t input, Deadline deadline, std::vector<int64_t>* values)
      RABIT_REQUIRES(mutex_);

  Engine& engine_;
  EngineState& state_;
  Mutex mutex_;                                        // held during a call
  std::set<GroupId> unsure_ RABIT_GUARDED_BY(mutex_);  // a call of theirs has timed out
  // A request may outlive a call whose deadline has passed.
  std::list<int64_t> inputs_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

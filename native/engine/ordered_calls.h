// OrderedCalls: operations that the caller's thread runs at once, without negotiation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "backend/backend.h"
#include "base/mutex.h"
#include "engine/engine_state.h"
#include "engine/fusion_buffer.h"
#include "engine/request.h"
#include "engine/route_memory.h"

namespace rabit {

// They have a stream of their own, next to those of the lanes, so that they and negotiated buckets
// never wait for each other.  Thread-safe; one call at a time.
class OrderedCalls {
 public:
  // `state` outlives it.
  explicit OrderedCalls(EngineState& state);

  // See Engine::RunOrdered.
  Status Run(const OrderedCall& call, Deadline deadline);
  Status Run(const std::string& what, const std::function<Status()>& exchange);

 private:
  Status Check(const OrderedCall& call, const Group& group) const;
  Status CheckCounts(const OrderedCall& call, int64_t size) const;
  Status Execute(const OrderedCall& call, const Group& group, const Route& route, LaneContext lane)
      RABIT_REQUIRES(mutex_);
  Status Allreduce(const OrderedCall& call, Backend& backend, const LaneContext& lane);
  Status ReduceScatter(const OrderedCall& call, Backend& backend, const LaneContext& lane)
      RABIT_REQUIRES(mutex_);
  Status Bad(const OrderedCall& call, const std::string& why) const;
  std::string Describe(const OrderedCall& call) const;
  // "allreduce (sum) of 4 elements of float32"
  static std::string Values(const OrderedCall& call);

  EngineState& state_;
  const int32_t lane_;
  Mutex mutex_;
  FusionBuffer buffer_ RABIT_GUARDED_BY(mutex_);
  RouteMemory routes_ RABIT_GUARDED_BY(mutex_);
  std::map<GroupId, uint64_t> calls_made_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

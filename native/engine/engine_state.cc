#include "engine/engine_state.h"

namespace rabit {

EngineState::EngineState(EngineParts given)
    : parts(std::move(given)),
      logger(parts.options.log_level, parts.rank),
      record(parts.rank, logger, statistics.clock()),
      handles(parts.rank, parts.options.queue_capacity,
              std::chrono::microseconds(parts.options.spin_us), statistics.clock(), record),
      submissions([this] { Wake(); }),
      failure([this] { Wake(); }),
      groups(parts.rank, parts.size),
      running(parts.all_lanes()),
      devices(parts.open_driver, parts.local_rank, parts.options.pinned_bytes),
      lane_services{parts.rank, parts.options, *parts.codecs, *parts.router, parts.backends,
                    statistics, record,        running,       devices,       failure} {}

CoreServices EngineState::core_services() {
  return {parts.rank,
          parts.size,
          parts.options,
          parts.all_lanes(),
          *parts.controller,
          *parts.scheduler,
          *parts.router,
          *parts.codecs,
          logger,
          groups,
          done,
          running,
          callers,
          has_ordered,
          statistics,
          record};
}

}  // namespace rabit

// LaneServices: what every lane uses.
#pragma once

#include <memory>
#include <span>

#include "backend/backend.h"
#include "codec/codec.h"
#include "engine/devices.h"
#include "engine/engine_parts.h"
#include "engine/failure_board.h"
#include "engine/record.h"
#include "engine/running_work.h"
#include "engine/statistics.h"
#include "route/router.h"

namespace rabit {

// All of it is thread-safe and outlives the lanes.
struct LaneServices {
  int rank = 0;
  EngineOptions options;
  CodecSet& codecs;
  const Router& router;
  std::span<const std::unique_ptr<Backend>> backends;  // by Route::executor
  Statistics& statistics;
  Record& record;
  RunningWork& running;
  Devices& devices;
  FailureBoard& failure;

  Backend& BackendOf(int32_t executor) const { return *backends[static_cast<size_t>(executor)]; }
  FailureScope ScopeOf(int32_t executor) const {
    return BackendOf(executor).fails_apart() ? router.OwnerOf(executor) : kWholeEngine;
  }
};

}  // namespace rabit

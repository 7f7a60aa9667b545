// EngineState: what the threads of one engine share.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/log.h"
#include "engine/bucket_run.h"
#include "engine/caller_watch.h"
#include "engine/devices.h"
#include "engine/done_counter.h"
#include "engine/engine_core.h"
#include "engine/engine_parts.h"
#include "engine/failure_board.h"
#include "engine/group_table.h"
#include "engine/handle_table.h"
#include "engine/record.h"
#include "engine/running_work.h"
#include "engine/statistics.h"
#include "engine/submission_queue.h"

namespace rabit {

// Members are thread-safe, except the scheduler and the controller, which belong to the engine's
// core (Controller::Wake may be called by anybody).  Threads hold it by shared_ptr, so that a
// thread that cannot be joined in time never sees freed memory.
struct EngineState {
  explicit EngineState(EngineParts given);

  CoreServices core_services();
  // What a failure of backends[executor] ends.
  FailureScope ScopeOf(int32_t executor) const { return lane_services.ScopeOf(executor); }

  // Makes whoever runs the engine's steps look again, and the engine thread if nobody does.
  void Wake() {
    needs_step.store(true);
    parts.controller->Wake();
    step_needed.Notify();
  }

  EngineParts parts;
  const Logger logger;
  Statistics statistics;
  Record record;
  HandleTable handles;
  SubmissionQueue submissions;
  FailureBoard failure;
  GroupTable groups;
  CallerWatch callers;
  DoneCounter done;
  RunningWork running;
  Devices devices;
  const LaneServices lane_services;

  std::atomic<bool> needs_step{false};  // cleared by the step that serves it
  WakeSignal step_needed;
  // Lanes wake the engine thread after a bucket only if somebody waits for credit.
  std::atomic<bool> needs_credit{false};
  std::atomic<bool> wants_stop{false};
  std::atomic<bool> has_ordered{false};  // see StuckWatch
};

}  // namespace rabit

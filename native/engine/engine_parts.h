// EngineParts: what an engine is made of, and its options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/device/device.h"
#include "base/log.h"
#include "base/result.h"
#include "codec/codec.h"
#include "control/controller.h"
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
  int64_t inline_bytes = 0;  // blocking calls up to this size are negotiated with their data
  size_t pinned_bytes = size_t{1} << 30;  // of the host's memory, for tensors on devices, at most
  std::string operation_log;    // the file that gets a line for each operation; empty: none
  std::string record;           // the file of the record, which exists; empty: none
  int64_t epoch = 1;            // of this engine, for the record
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

}  // namespace rabit

// The controllers: rank 0's coordinates, the others' ask it over a Channel, directly or through the
// ranks between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "control/controller.h"
#include "transport/channel.h"
#include "transport/rank_tree.h"

namespace rabit {

struct ControllerOptions {            // equal on all ranks
  size_t cache_capacity = 1 << 14;    // tensors that all ranks remember by a number; 1 to 2^20
  int64_t stall_warning_ms = 10'000;  // a tensor that waits longer is reported on every rank
  int64_t stall_abort_ms = 0;         // one that waits longer fails the job; 0: never
  int64_t second_look_ms = 5'000;     // ranks that wait for each other at both looks fail the job
  // False saves one agreement per bucket whenever nothing but Agreement::buckets_done has moved.
  // Only for schedulers without a credit limit: others wait for it.
  bool announces_credit = true;
};

// Takes the channel's rank as its own; the tree is the one that the channel connects, and `clock`,
// which outlives it, the one that the channel's deadlines are of.
std::unique_ptr<Controller> MakeController(std::unique_ptr<Channel> channel, const RankTree& tree,
                                           const ControllerOptions& options, const Clock& clock);

// For a job of one rank: every announcement is agreed at once.
std::unique_ptr<Controller> MakeLocalController(const ControllerOptions& options,
                                                const Clock& clock);

}  // namespace rabit

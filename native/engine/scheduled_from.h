// What the scheduler is told of an agreed tensor.
#pragma once

#include <cstdint>

#include "control/agreement.h"
#include "schedule/scheduler.h"

namespace rabit {

// Elements; equal on all ranks even where their parts differ.
int64_t AgreedCount(const ReadyTensor& ready);
// slot: what the scheduler's buckets call the tensor.  avoided_backends: as in Work.
ScheduledTensor ScheduledFrom(const ReadyTensor& ready, int32_t slot, int64_t count,
                              int64_t cut_multiple, bool is_of_all, uint32_t avoided_backends);

}  // namespace rabit

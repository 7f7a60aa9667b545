// OperationSlots: operations in flight, kept by slot.
#pragma once

#include <optional>
#include <vector>

#include "transport/operation.h"

namespace rabit {

// Destroying it cancels what is still in flight; declare it after the memory it uses.
class OperationSlots {
 public:
  explicit OperationSlots(size_t slots) : slots_(slots) {}

  void Start(size_t slot, Operation operation) { slots_[slot].emplace(std::move(operation)); }

  // OK at once for an empty slot; a finished slot becomes empty.
  Status Wait(size_t slot, Deadline deadline) {
    if (!slots_[slot].has_value()) return Status();
    Status status = slots_[slot]->Wait(deadline);
    if (status.ok()) slots_[slot].reset();
    return status;
  }

  Status WaitRange(size_t first, size_t count, Deadline deadline) {
    for (size_t slot = first; slot < first + count; ++slot) {
      RABIT_RETURN_IF_ERROR(Wait(slot, deadline));
    }
    return Status();
  }
  Status WaitAll(Deadline deadline) { return WaitRange(0, slots_.size(), deadline); }

 private:
  std::vector<std::optional<Operation>> slots_;
};

}  // namespace rabit

// OperationSlots: operations in flight, kept by slot.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "base/operation.h"

namespace rabit {

// Destroying it cancels what is still in flight; declare it after the memory it uses.
class OperationSlots {
 public:
  explicit OperationSlots(size_t slots)
      : more_(slots > kFew ? slots : 0),
        slots_(slots > kFew ? std::span(more_) : std::span(few_).first(slots)) {}
  OperationSlots(const OperationSlots&) = delete;
  OperationSlots& operator=(const OperationSlots&) = delete;

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
  static constexpr size_t kFew = 4;  // without an allocation, which a small tensor would notice

  std::array<std::optional<Operation>, kFew> few_;
  std::vector<std::optional<Operation>> more_;
  const std::span<std::optional<Operation>> slots_;
};

}  // namespace rabit

// Operation: a message or a collective in flight, or over already.
#pragma once

#include <memory>

#include "base/bytes.h"
#include "base/status.h"

namespace rabit {

// What a transport or a backend supplies for an operation that is not over when it returns.  One
// thread at a time.
class PendingOperation {
 public:
  virtual ~PendingOperation() = default;
  // Blocks until the operation is finished, failed, or the deadline passes (kTimedOut; the
  // operation is then still in flight).
  virtual Status Wait(Deadline deadline) = 0;
  // Returns only when nobody will touch the buffers again.
  virtual void Cancel() = 0;
};

// Move-only.  The destructor cancels what is not finished and returns only when the buffer is no
// longer touched, so a buffer may be freed right after.
class [[nodiscard]] Operation {
 public:
  // Over, well or not; costs no allocation.
  Operation(Status finished) : status_(std::move(finished)) {}  // NOLINT: implicit
  explicit Operation(std::unique_ptr<PendingOperation> pending) : pending_(std::move(pending)) {}
  Operation(Operation&&) noexcept = default;
  Operation& operator=(Operation&&) = delete;
  ~Operation() {
    if (pending_) pending_->Cancel();
  }

  // Whether it is over; Wait then returns at once.
  bool is_finished() const { return pending_ == nullptr; }

  Status Wait(Deadline deadline) {
    if (!pending_) return status_;
    Status status = pending_->Wait(deadline);
    if (status.code() == Code::kTimedOut) return status;
    status_ = status;
    pending_.reset();
    return status_;
  }

 private:
  std::unique_ptr<PendingOperation> pending_;
  Status status_;
};

}  // namespace rabit

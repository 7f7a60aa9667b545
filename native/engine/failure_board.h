// FailureBoard: why this engine fails, settled once.
#pragma once

#include <atomic>
#include <functional>

#include "base/mutex.h"
#include "base/status.h"

namespace rabit {

// A lane that loses a peer only suspects it: the peer may have left because of somebody else's
// death.  The lane reports and waits; the engine thread gives the control plane a moment to name
// the culprit and then settles.  Thread-safe.
class FailureBoard {
 public:
  // `wake` makes the engine thread look.
  explicit FailureBoard(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Reports `suspicion`, waits for the verdict and returns it; `suspicion` itself if none came.
  Status Resolve(const Status& suspicion, Deadline deadline);

  // The engine thread.  OK: nobody suspects anything.
  Status suspicion() const;
  // The first verdict is kept.
  void Settle(const Status& verdict);

  bool has_verdict() const { return has_verdict_.load(std::memory_order_acquire); }
  Status verdict() const;

 private:
  const std::function<void()> wake_;
  std::atomic<bool> has_verdict_{false};
  mutable Mutex mutex_;
  CondVar settled_;
  Status suspicion_ RABIT_GUARDED_BY(mutex_);
  Status verdict_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

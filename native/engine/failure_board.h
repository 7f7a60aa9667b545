// FailureBoard: why this engine, or one of its backends, fails; settled once.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"

namespace rabit {

// What a failure ends: a backend, as operations name it, or all of them.
using FailureScope = BackendId;
inline constexpr FailureScope kWholeEngine = 0;  // builtin, without which there is no engine

struct Suspicion {
  FailureScope scope = kWholeEngine;
  Status why;
};

// A lane that loses a peer only suspects it: the peer may have left because of somebody else's
// death.  The lane reports and waits; the engine thread gives the control plane a moment to name
// the culprit and then settles: the engine alone, a backend with all other ranks.  Thread-safe.
class FailureBoard {
 public:
  // `wake` makes the engine thread look.
  explicit FailureBoard(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Suspect(FailureScope scope, const Status& suspicion);
  // The same; waits for the verdict and returns it; `suspicion` itself if none came.
  Status Resolve(FailureScope scope, const Status& suspicion, Deadline deadline);

  // The engine thread.  The first of each scope, as long as nothing is settled.
  std::vector<Suspicion> suspicions() const;
  // On the engine.  The first verdict is kept.
  void Settle(const Status& verdict);
  // On a backend.  False: some operation goes on by another one, so this cannot end by itself.
  bool SettleBackend(FailureScope scope, const Status& verdict);

  // On the engine.
  bool has_verdict() const { return has_verdict_.load(std::memory_order_acquire); }
  Status verdict() const;
  // What whoever uses the backend is to know: its own verdict, or else that on the engine.
  Status verdict_on(FailureScope scope) const;

  // An operation that has exchanged something by a backend goes on by another one.  If the first
  // exchange has failed on another rank, that rank is not there for the second: nobody can tell, so
  // both backends fail, as one.  Not OK: the first has failed already.
  Status GoOnAfter(FailureScope scope);
  void EndAfter(FailureScope scope);

 private:
  struct Backend {
    Status suspicion;
    Status verdict;
    int outlived = 0;  // operations between GoOnAfter and EndAfter
  };

  Status VerdictOn(FailureScope scope) const RABIT_REQUIRES(mutex_);

  const std::function<void()> wake_;
  std::atomic<bool> has_verdict_{false};
  std::atomic<bool> has_news_{false};  // some suspicion, or a verdict on a backend
  mutable Mutex mutex_;
  CondVar settled_;
  Status verdict_ RABIT_GUARDED_BY(mutex_);
  std::map<FailureScope, Backend> backends_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

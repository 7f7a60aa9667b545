// ReadyWatch: holds requests on device tensors back until the device has computed them.
#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/wake_signal.h"
#include "engine/engine_state.h"

namespace rabit {

// A tensor is announced when it is there, not when its kernels have been launched: a program
// launches a whole backward pass ahead, and its most urgent gradients come last.  The thread starts
// with the first batch.  Thread-safe.
class ReadyWatch {
 public:
  using Batch = std::vector<std::shared_ptr<PendingRequest>>;

  explicit ReadyWatch(EngineState& state) : state_(state) {}
  ~ReadyWatch();

  // The batch is submitted as a whole, when the events of all its requests are over, and batches in
  // their order.  Whatever prevents that ends its requests.
  void Push(Batch batch);

 private:
  void Run();
  bool HasNews();
  // Why it cannot be submitted any more, or ok.
  Status WaitReady(const Batch& batch);
  void Fail(const Batch& batch, const Status& why);

  EngineState& state_;
  WakeSignal changed_;
  Mutex mutex_;
  std::deque<Batch> waiting_ RABIT_GUARDED_BY(mutex_);
  bool is_closed_ RABIT_GUARDED_BY(mutex_) = false;
  std::thread thread_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

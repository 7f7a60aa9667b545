// ReadyWatch: holds requests on device tensors back until the device has computed them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/wake_signal.h"
#include "engine/engine_state.h"

namespace rabit {

// A tensor is announced when it is there, not when its kernels have been launched: a program
// launches a whole backward pass ahead, and its most urgent gradients come last.  A stream that is
// late holds back no other: what it waits for may be another rank, which waits for the other's
// tensors.  The thread starts with the first batch.  Thread-safe.
class ReadyWatch {
 public:
  using Batch = std::vector<std::shared_ptr<PendingRequest>>;

  explicit ReadyWatch(EngineState& state) : state_(state) {}
  ~ReadyWatch();

  // The batch is submitted as a whole, when the events of all its requests are over, and batches of
  // a stream in their order.  Whatever prevents that ends its requests.
  void Push(Batch batch);

 private:
  using StreamOf = std::pair<int, uint64_t>;  // device and stream

  void Run();
  bool HasNews();
  // Adds what has been pushed.  False: nothing is held and nothing more comes.
  bool TakeNew(std::vector<Batch>& held);
  // Submits what is ready, in the order of `held`; whether there was anything.
  bool PassReady(std::vector<Batch>& held);
  // An error: it cannot be submitted any more.  late: streams that have not come as far as an
  // earlier batch wants them; what is asked of them later is later still.
  Result<bool> IsReady(const Batch& batch, std::set<StreamOf>& late);
  void Fail(const Batch& batch, const Status& why);

  EngineState& state_;
  WakeSignal changed_;
  Mutex mutex_;
  std::deque<Batch> waiting_ RABIT_GUARDED_BY(mutex_);
  bool is_closed_ RABIT_GUARDED_BY(mutex_) = false;
  std::thread thread_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

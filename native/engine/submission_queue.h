// SubmissionQueue: requests on their way to the engine thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "engine/pending_request.h"

namespace rabit {

// Many producers, one consumer.  Bounded by the handle table, which counts what is in flight.
class SubmissionQueue {
 public:
  using Batch = std::vector<std::shared_ptr<PendingRequest>>;

  // `wake` makes the consumer look; it is called only when the queue was empty, because the
  // consumer always takes everything, and not during a nap.
  explicit SubmissionQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Any thread.  The batch becomes visible as a whole.  After Close: the status it was closed with.
  Status Push(std::span<const std::shared_ptr<PendingRequest>> batch);
  // The same for the consumer itself, whom nobody needs to wake.
  Status PushQuietly(std::span<const std::shared_ptr<PendingRequest>> batch);
  // Somebody waits for what may be in the queue: the consumer looks now, even if it naps.
  void Hurry() {
    if (is_unseen_.load(std::memory_order_relaxed) && is_unseen_.exchange(false)) wake_();
  }

  // The consumer.
  Batch TakeAll();
  // The consumer looks again soon whatever happens, so that nobody who pushes until EndNap pays for
  // waking it.  False: there is something to take already.
  bool StartNap();
  // True: something has come.
  bool EndNap();
  // The first reason is kept.  What was pushed before is still in the queue.
  void Close(const Status& why);
  // What it was closed with; ok: it is open.
  Status closed() const;

 private:
  Status Add(std::span<const std::shared_ptr<PendingRequest>> batch, bool& is_first);

  const std::function<void()> wake_;
  std::atomic<bool> is_unseen_{false};  // there is something of which nobody has told the consumer

  mutable Mutex mutex_;
  Batch waiting_ RABIT_GUARDED_BY(mutex_);
  bool is_napping_ RABIT_GUARDED_BY(mutex_) = false;
  Status closed_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

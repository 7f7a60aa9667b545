#include "engine/submission_queue.h"

namespace rabit {

Status SubmissionQueue::Push(std::span<const std::shared_ptr<PendingRequest>> batch) {
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return closed_;
    is_first = waiting_.empty();
    waiting_.insert(waiting_.end(), batch.begin(), batch.end());
  }
  if (is_first) wake_();
  return Status();
}

SubmissionQueue::Batch SubmissionQueue::TakeAll() {
  Batch taken;
  MutexLock lock(mutex_);
  taken.swap(waiting_);
  return taken;
}

void SubmissionQueue::Close(const Status& why) {
  MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = why;
}

}  // namespace rabit

#include "engine/submission_queue.h"

namespace rabit {

Status SubmissionQueue::Push(std::span<const std::shared_ptr<PendingRequest>> batch) {
  bool is_first = false;
  RABIT_RETURN_IF_ERROR(Add(batch, is_first));
  // Outside the lock, because the engine thread takes it as soon as it is awake.
  if (is_first) wake_();
  return Status();
}

Status SubmissionQueue::PushQuietly(std::span<const std::shared_ptr<PendingRequest>> batch) {
  bool is_first = false;
  return Add(batch, is_first);
}

Status SubmissionQueue::Add(std::span<const std::shared_ptr<PendingRequest>> batch,
                            bool& is_first) {
  MutexLock lock(mutex_);
  if (!closed_.ok()) return closed_;
  is_first = waiting_.empty() && !is_napping_;
  // Whoever is about to wait calls Hurry, which wakes the thread at once if this is set.
  if (is_napping_) is_unseen_.store(true);
  waiting_.insert(waiting_.end(), batch.begin(), batch.end());
  return Status();
}

SubmissionQueue::Batch SubmissionQueue::TakeAll() {
  Batch taken;
  MutexLock lock(mutex_);
  // The swap keeps the lock short: producers wait for it on their way to the next gradient.
  taken.swap(waiting_);
  is_unseen_.store(false, std::memory_order_relaxed);
  return taken;
}

bool SubmissionQueue::StartNap() {
  MutexLock lock(mutex_);
  // What came since TakeAll has woken nobody yet: with a nap it would wait for its end.
  is_napping_ = waiting_.empty();
  return is_napping_;
}

bool SubmissionQueue::EndNap() {
  MutexLock lock(mutex_);
  is_napping_ = false;
  return !waiting_.empty();
}

void SubmissionQueue::Close(const Status& why) {
  MutexLock lock(mutex_);
  // The lock makes this the last word: a Push either came before and gets its error from
  // FinishOpen, or gets it here.
  if (closed_.ok()) closed_ = why;
}

Status SubmissionQueue::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

}  // namespace rabit

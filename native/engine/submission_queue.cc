#include "engine/submission_queue.h"

namespace rabit {

Status SubmissionQueue::Push(std::span<const std::shared_ptr<PendingRequest>> batch) {
  bool is_first = false;
  RABIT_RETURN_IF_ERROR(Add(batch, is_first));
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
  if (is_napping_) is_unseen_.store(true);
  waiting_.insert(waiting_.end(), batch.begin(), batch.end());
  return Status();
}

SubmissionQueue::Batch SubmissionQueue::TakeAll() {
  Batch taken;
  MutexLock lock(mutex_);
  taken.swap(waiting_);
  is_unseen_.store(false, std::memory_order_relaxed);
  return taken;
}

bool SubmissionQueue::StartNap() {
  MutexLock lock(mutex_);
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
  if (closed_.ok()) closed_ = why;
}

Status SubmissionQueue::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

}  // namespace rabit

#include "engine/failure_board.h"

namespace rabit {

Status FailureBoard::Resolve(const Status& suspicion, Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (!verdict_.ok()) return verdict_;
    if (suspicion_.ok()) suspicion_ = suspicion;
  }
  wake_();
  MutexLock lock(mutex_);
  while (verdict_.ok() && settled_.WaitUntil(mutex_, deadline)) {
  }
  return verdict_.ok() ? suspicion : verdict_;
}

Status FailureBoard::suspicion() const {
  MutexLock lock(mutex_);
  return suspicion_;
}

void FailureBoard::Settle(const Status& verdict) {
  MutexLock lock(mutex_);
  if (!verdict_.ok()) return;
  verdict_ = verdict;
  has_verdict_.store(true, std::memory_order_release);
  settled_.NotifyAll();
}

Status FailureBoard::verdict() const {
  MutexLock lock(mutex_);
  return verdict_;
}

}  // namespace rabit

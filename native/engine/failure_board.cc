#include "engine/failure_board.h"

namespace rabit {

void FailureBoard::Suspect(FailureScope scope, const Status& suspicion) {
  {
    MutexLock lock(mutex_);
    Backend& backend = backends_[scope];
    // The first suspicion is nearest to the cause; what other lanes see later mostly follows from
    // it.
    if (backend.suspicion.ok()) backend.suspicion = suspicion;
    has_news_.store(true, std::memory_order_release);
  }
  // Outside the lock: the engine thread takes it as soon as it is awake.
  wake_();
}

Status FailureBoard::Resolve(FailureScope scope, const Status& suspicion, Deadline deadline) {
  if (const Status settled = verdict_on(scope); !settled.ok()) return settled;
  // What a lane sees is a suspicion: the rank that closed its connection may itself have lost
  // another one. It waits for the verdict of all ranks.
  Suspect(scope, suspicion);
  MutexLock lock(mutex_);
  // The lane sleeps here without anything of the engine but this mutex, which the wait gives up.
  while (VerdictOn(scope).ok() && settled_.WaitUntil(mutex_, deadline)) {
  }
  const Status verdict = VerdictOn(scope);
  // No verdict in time, as when rank 0 itself is lost: then the suspicion is the best there is.
  return verdict.ok() ? suspicion : verdict;
}

std::vector<Suspicion> FailureBoard::suspicions() const {
  // Each step of the engine thread comes here, so the common case takes no lock.
  if (!has_news_.load(std::memory_order_acquire)) return {};
  MutexLock lock(mutex_);
  std::vector<Suspicion> open;
  for (const auto& [scope, backend] : backends_) {
    const bool is_open = !backend.suspicion.ok() && VerdictOn(scope).ok();
    if (is_open) open.push_back({scope, backend.suspicion});
  }
  return open;
}

void FailureBoard::Settle(const Status& verdict) {
  MutexLock lock(mutex_);
  // The first verdict stays; all callers see the same.
  if (!verdict_.ok()) return;
  verdict_ = verdict;
  has_verdict_.store(true, std::memory_order_release);
  has_news_.store(true, std::memory_order_release);
  settled_.NotifyAll();
}

bool FailureBoard::SettleBackend(FailureScope scope, const Status& verdict) {
  MutexLock lock(mutex_);
  Backend& backend = backends_[scope];
  if (backend.verdict.ok()) backend.verdict = verdict;
  has_news_.store(true, std::memory_order_release);
  settled_.NotifyAll();
  // An operation that went on by another backend cannot be taken back: then the failure is one of
  // the engine.
  return backend.outlived == 0;
}

Status FailureBoard::verdict() const {
  MutexLock lock(mutex_);
  return verdict_;
}

Status FailureBoard::verdict_on(FailureScope scope) const {
  if (!has_news_.load(std::memory_order_acquire)) return Status();
  MutexLock lock(mutex_);
  return VerdictOn(scope);
}

// Of a backend before that of the engine, which may only follow from it.
Status FailureBoard::VerdictOn(FailureScope scope) const {
  const auto found = backends_.find(scope);
  const bool is_own = found != backends_.end() && !found->second.verdict.ok();
  return is_own ? found->second.verdict : verdict_;
}

Status FailureBoard::GoOnAfter(FailureScope scope) {
  MutexLock lock(mutex_);
  Backend& backend = backends_[scope];
  // Counting and looking are one step under the lock: SettleBackend must see either the count or
  // nobody who goes on.
  if (backend.verdict.ok()) ++backend.outlived;
  return backend.verdict;
}

void FailureBoard::EndAfter(FailureScope scope) {
  MutexLock lock(mutex_);
  --backends_[scope].outlived;
}

}  // namespace rabit

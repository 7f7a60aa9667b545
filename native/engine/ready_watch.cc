#include "engine/ready_watch.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace rabit {
namespace {

// How soon a kernel that does not end is noticed to be of no use any more.
constexpr auto kLookForEnd = std::chrono::milliseconds(20);
constexpr auto kVerdictWithin = std::chrono::seconds(2);

}  // namespace

ReadyWatch::~ReadyWatch() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
    thread.swap(thread_);
  }
  changed_.Notify();
  if (thread.joinable()) thread.join();
}

void ReadyWatch::Push(Batch batch) {
  {
    MutexLock lock(mutex_);
    waiting_.push_back(std::move(batch));
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  changed_.Notify();
}

bool ReadyWatch::HasNews() {
  MutexLock lock(mutex_);
  return !waiting_.empty() || is_closed_;
}

void ReadyWatch::Run() {
  ::pthread_setname_np(::pthread_self(), "rabit-ready");
  for (;;) {
    (void)changed_.Wait([this] { return HasNews(); }, After(std::chrono::hours(24)));
    Batch batch;
    {
      MutexLock lock(mutex_);
      if (waiting_.empty() && is_closed_) return;
      if (waiting_.empty()) continue;
      batch = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Status status = WaitReady(batch);
    if (status.ok()) status = state_.submissions.Push(batch);
    if (!status.ok()) Fail(batch, status);
  }
}

Status ReadyWatch::WaitReady(const Batch& batch) {
  RABIT_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceDriver> driver, state_.devices.driver());
  for (const std::shared_ptr<PendingRequest>& pending : batch) {
    const Request& request = pending->request;
    if (request.ready == nullptr) continue;
    for (;;) {
      RABIT_RETURN_IF_ERROR(state_.submissions.closed());
      const Status status =
          WaitOver(*driver, request.device.index, request.ready->get(), After(kLookForEnd));
      if (status.ok()) break;
      if (status.code() == Code::kTimedOut) continue;
      // The other ranks wait for this tensor, and a device that has failed gives none any more.
      return state_.failure.Resolve(
          Status(status.code(), pending->Describe(state_.parts.rank) + ": " + status.message()),
          After(kVerdictWithin));
    }
  }
  return Status();
}

void ReadyWatch::Fail(const Batch& batch, const Status& why) {
  for (const std::shared_ptr<PendingRequest>& pending : batch) {
    const std::string what = pending->Describe(state_.parts.rank);
    const bool is_named = why.message().starts_with(what);
    pending->SetError(
        is_named ? why
                 : Status(why.code(), what + ": " + why.message()).WithCulprit(why.culprit()));
    state_.handles.Drop(pending);
  }
}

}  // namespace rabit

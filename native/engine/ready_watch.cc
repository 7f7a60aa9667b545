#include "engine/ready_watch.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/device/ask_until.h"
#include "engine/patience.h"

namespace rabit {

ReadyWatch::~ReadyWatch() {
  // Joined without the lock, which the thread takes for a last look.
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

bool ReadyWatch::TakeNew(std::vector<Batch>& held) {
  MutexLock lock(mutex_);
  std::move(waiting_.begin(), waiting_.end(), std::back_inserter(held));
  waiting_.clear();
  return !held.empty() || !is_closed_;
}

void ReadyWatch::Run() {
  ::pthread_setname_np(::pthread_self(), "rabit-ready");
  std::vector<Batch> held;
  AskPause pause;
  for (;;) {
    // Events wake nobody: while a batch is held, they are asked for.
    const Deadline until = held.empty() ? After(std::chrono::hours(24)) : After(pause.Next());
    const bool has_news = changed_.Wait([this] { return HasNews(); }, until);
    if (!TakeNew(held)) return;
    if (PassReady(held) || has_news) pause.Reset();
  }
}

bool ReadyWatch::PassReady(std::vector<Batch>& held) {
  // In order: a later batch of a stream that is late must not pass an earlier one.
  std::set<StreamOf> late;
  const size_t passed = std::erase_if(held, [&](const Batch& batch) {
    const Result<bool> is_ready = IsReady(batch, late);
    Status status = is_ready.status();
    if (status.ok() && !*is_ready) return false;
    if (status.ok()) status = state_.submissions.Push(batch);
    if (!status.ok()) Fail(batch, status);
    return true;
  });
  return passed > 0;
}

Result<bool> ReadyWatch::IsReady(const Batch& batch, std::set<StreamOf>& late) {
  // A kernel that does not end is of no use any more when the engine has.
  RABIT_RETURN_IF_ERROR(state_.submissions.closed());
  RABIT_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceDriver> driver, state_.devices.driver());
  for (const std::shared_ptr<PendingRequest>& pending : batch) {
    const Request& request = pending->request;
    if (request.ready == nullptr) continue;
    const StreamOf stream(request.device.index, request.stream);
    if (late.contains(stream)) return false;
    const Result<bool> is_over = driver->IsOver(request.device.index, request.ready->get());
    if (!is_over.ok()) {
      // The other ranks wait for this tensor, and a device that has failed gives none any more.
      return state_.failure.Resolve(
          kWholeEngine, is_over.status().Annotated(pending->Describe(state_.parts.rank)),
          After(kVerdictWithin));
    }
    if (!*is_over) {
      late.insert(stream);
      return false;
    }
  }
  return true;
}

void ReadyWatch::Fail(const Batch& batch, const Status& why) {
  for (const std::shared_ptr<PendingRequest>& pending : batch) {
    pending->SetError(why.Annotated(pending->Describe(state_.parts.rank)));
    state_.handles.Drop(pending);
  }
}

}  // namespace rabit

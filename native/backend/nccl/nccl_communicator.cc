#include "backend/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/device/ask_until.h"
#include "base/wake_signal.h"

namespace rabit {
namespace {

// Until other ranks have come as far as this one.
constexpr auto kFlushWithin = std::chrono::seconds(10);
// NCCL waits for what its stream has before, which may be a program's kernel, and for the ranks of
// the host; nobody waits longer for it than for any backend.
constexpr auto kEndWithin = kAbortWithin;

Status WasAborted() { return Aborted("the communicators of NCCL were given up"); }

}  // namespace

Status NcclCommunicator::Open(const nccl::UniqueId& identity, int rank, int size,
                              Deadline deadline) {
  nccl::Config config{sizeof(nccl::Config), nccl::kConfigMagic, nccl::kVersionMin, 0};
  nccl::Result result = nccl::kSuccess;
  {
    MutexLock lock(mutex_);
    // The look and the call are under one lock: an abort between the two would use a handle that
    // does not exist yet.
    if (is_aborted_.load()) return WasAborted();
    RABIT_RETURN_IF_ERROR(driver_->Run(device_, [&] {
      result = library_->ncclCommInitRankConfig(&handle_, size, identity, rank, &config);
      return Status();
    }));
    // NCCL may fill in the handle from a thread of its own while the communicator opens.
    comm_ = std::atomic_ref<nccl::Comm>(handle_).load();
  }
  const Status status = AwaitProgress("ncclCommInitRankConfig", result, deadline);
  is_whole_ = status.ok();
  return status;
}

Status NcclCommunicator::Guarded(const char* what, const Call& call, nccl::Result& result) {
  MutexLock lock(mutex_);
  // comm_ is null once the communicator has been taken to be ended.
  if (comm_ == nullptr || is_aborted_.load()) return WasAborted();
  const nccl::Comm comm = comm_;
  RABIT_RETURN_IF_ERROR(driver_->Run(device_, [&] {
    result = call(comm);
    return Status();
  }));
  if (result == nccl::kSuccess || result == nccl::kInProgress) return Status();
  return library_->Failed(what, result, comm);
}

Status NcclCommunicator::Ask(const char* what, nccl::Result& result) {
  MutexLock lock(mutex_);
  // The lock is held for the question alone, so that an abort gets between two of them.
  if (comm_ == nullptr || is_aborted_.load()) return WasAborted();
  const nccl::Result called = library_->ncclCommGetAsyncError(comm_, &result);
  if (called != nccl::kSuccess) result = called;
  if (result == nccl::kSuccess || result == nccl::kInProgress) return Status();
  return library_->Failed(what, result, comm_);
}

Status NcclCommunicator::Make(const char* what, const Call& call, Deadline deadline) {
  nccl::Result result = nccl::kSuccess;
  Status status = Guarded(what, call, result);
  if (status.ok()) status = AwaitProgress(what, result, deadline);
  // A communicator that has failed once is aborted at its end: a flush would wait for ranks that
  // have given up.
  is_whole_ = is_whole_ && status.ok();
  return status;
}

Status NcclCommunicator::AwaitProgress(const char* what, nccl::Result result, Deadline deadline) {
  if (result != nccl::kSuccess && result != nccl::kInProgress) {
    return library_->Failed(what, result, nullptr);
  }
  RABIT_ASSIGN_OR_RETURN(const bool is_done, AskUntil(deadline, [&]() -> Result<bool> {
                           if (result == nccl::kInProgress)
                             RABIT_RETURN_IF_ERROR(Ask(what, result));
                           return result != nccl::kInProgress;
                         }));
  if (is_done) return Status();
  return TimedOut(std::string(what) +
                  " of NCCL is not done: a rank of the group has not come to it; look at what the "
                  "other ranks do");
}

Status NcclCommunicator::Failure() {
  nccl::Result asked = nccl::kSuccess;
  return Ask("a collective", asked);
}

nccl::Comm NcclCommunicator::Take() {
  MutexLock lock(mutex_);
  return std::exchange(comm_, nullptr);
}

void NcclCommunicator::AbortAll(const Several& communicators) {
  // All are marked before the first one ends: a lane that waits in one of them must stop asking.
  for (const auto& each : communicators) each->is_aborted_.store(true);
  std::vector<End> ends;
  for (const auto& each : communicators) ends.push_back({each, false});
  EndAside(std::move(ends));
}

void NcclCommunicator::CloseAll(const Several& communicators) {
  const Deadline deadline = After(kFlushWithin);
  std::vector<End> ends;
  for (const auto& each : communicators) {
    const auto finalize = [&](nccl::Comm comm) { return each->library_->ncclCommFinalize(comm); };
    // What was put on streams is finished first; destroying without it could lose the last bucket.
    const Status flushed = each->is_whole_ ? each->Make("ncclCommFinalize", finalize, deadline)
                                           : TimedOut("what it was told is not done");
    if (flushed.code() != Code::kAborted) ends.push_back({each, flushed.ok()});
  }
  EndAside(std::move(ends));
}

void NcclCommunicator::EndAside(std::vector<End> ends) {
  if (ends.empty()) return;
  // The thread may outlive this call, so the two share it.
  struct Progress {
    WakeSignal changed;
    std::atomic<bool> has_returned{false};
    std::atomic<bool> goes_on{false};
  };
  const auto progress = std::make_shared<Progress>();
  std::thread thread([progress, ends = std::move(ends)] {
    progress->goes_on.store(EndTogether(ends) == nccl::kInProgress);
    progress->has_returned.store(true);
    progress->changed.Notify();
    // Older versions of NCCL go on in the background with memory of the thread that has called.
    while (progress->goes_on.load()) std::this_thread::sleep_for(std::chrono::hours(24));
  });
  const bool has_returned = progress->changed.Wait(
      [&progress] { return progress->has_returned.load(); }, After(kEndWithin));
  if (has_returned && !progress->goes_on.load()) {
    thread.join();
  } else {
    thread.detach();  // there is nobody to tell, and the process keeps what NCCL keeps
  }
}

nccl::Result NcclCommunicator::EndTogether(const std::vector<End>& ends) {
  const NcclCommunicator& any = *ends.front().communicator;
  const NcclLibrary& library = *any.library_;
  std::vector<nccl::Comm> flushed;
  bool has_aborted = false;
  // In one group, because ranks of one process that end one after another wait for each other.
  (void)library.ncclGroupStart();
  for (const auto& [communicator, is_flushed] : ends) {
    const nccl::Comm comm = communicator->Take();
    if (comm == nullptr) continue;
    if (is_flushed) {
      flushed.push_back(comm);
    } else {
      // Before any call of the driver, which may hold all of them up until these kernels end.
      (void)library.ncclCommAbort(comm);
      has_aborted = true;
    }
  }
  const bool has_any = has_aborted || !flushed.empty();
  return has_any ? any.EndGroup(flushed) : library.ncclGroupEnd();
}

// With the device current if that can be: an abort makes it so itself.
nccl::Result NcclCommunicator::EndGroup(const std::vector<nccl::Comm>& destroyed) const {
  nccl::Result result = nccl::kSuccess;
  bool has_ended = false;
  (void)driver_->Run(device_, [&] {
    for (const nccl::Comm comm : destroyed) (void)library_->ncclCommDestroy(comm);
    result = library_->ncclGroupEnd();
    has_ended = true;
    return Status();
  });
  return has_ended ? result : library_->ncclGroupEnd();
}

}  // namespace rabit

#include "backend/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace rabit {
namespace {

// NCCL tells nobody when it is done, so it is asked: soon after a launch, later while it connects.
constexpr auto kAskFirst = std::chrono::microseconds(5);
constexpr auto kAskLast = std::chrono::milliseconds(1);

Status WasAborted() { return Aborted("the communicators of NCCL were given up"); }

}  // namespace

Status NcclCommunicator::Open(const nccl::UniqueId& identity, int rank, int size,
                              Deadline deadline) {
  nccl::Config config{sizeof(nccl::Config), nccl::kConfigMagic, nccl::kVersionMin, 0};
  nccl::Result result = nccl::kSuccess;
  {
    MutexLock lock(mutex_);
    if (is_aborted_.load()) return WasAborted();
    nccl::Comm made = nullptr;
    RABIT_RETURN_IF_ERROR(driver_->Run(device_, [&] {
      result = library_->ncclCommInitRankConfig(&made, size, identity, rank, &config);
      return Status();
    }));
    comm_ = made;
  }
  return AwaitProgress("ncclCommInitRankConfig", result, deadline);
}

Status NcclCommunicator::Guarded(const char* what, const Call& call, nccl::Result& result) {
  MutexLock lock(mutex_);
  if (comm_ == nullptr) return WasAborted();
  const nccl::Comm comm = comm_;
  RABIT_RETURN_IF_ERROR(driver_->Run(device_, [&] {
    result = call(comm);
    return Status();
  }));
  if (result == nccl::kSuccess || result == nccl::kInProgress) return Status();
  return library_->Failed(what, result, comm);
}

Status NcclCommunicator::Make(const char* what, const Call& call, Deadline deadline) {
  nccl::Result result = nccl::kSuccess;
  RABIT_RETURN_IF_ERROR(Guarded(what, call, result));
  return AwaitProgress(what, result, deadline);
}

Status NcclCommunicator::AwaitProgress(const char* what, nccl::Result result, Deadline deadline) {
  if (result != nccl::kSuccess && result != nccl::kInProgress) {
    return library_->Failed(what, result, nullptr);
  }
  std::chrono::microseconds pause = kAskFirst;
  while (result == nccl::kInProgress) {
    nccl::Result asked = nccl::kSuccess;
    RABIT_RETURN_IF_ERROR(Guarded(
        what,
        [&](nccl::Comm comm) {
          const nccl::Result called = library_->ncclCommGetAsyncError(comm, &asked);
          return called == nccl::kSuccess ? asked : called;
        },
        result));
    if (result != nccl::kInProgress) break;
    if (std::chrono::steady_clock::now() >= deadline) {
      return TimedOut(std::string(what) +
                      " of NCCL is not done: a rank of the group has not come to it; look at what "
                      "the other ranks do");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(pause * 2, kAskLast);
  }
  return Status();
}

Status NcclCommunicator::Failure() {
  nccl::Result asked = nccl::kSuccess;
  return Guarded(
      "a collective",
      [&](nccl::Comm comm) {
        const nccl::Result called = library_->ncclCommGetAsyncError(comm, &asked);
        return called == nccl::kSuccess ? asked : called;
      },
      asked);
}

nccl::Comm NcclCommunicator::Take() {
  MutexLock lock(mutex_);
  return std::exchange(comm_, nullptr);
}

NcclCommunicator::~NcclCommunicator() {
  const nccl::Comm comm = Take();
  if (comm == nullptr) return;
  // There is nobody to tell, and nothing else to be done: the process keeps what NCCL keeps.
  (void)driver_->Run(device_, [&] {
    (void)library_->ncclCommAbort(comm);
    return Status();
  });
}

void NcclCommunicator::AbortAll(
    const std::vector<std::shared_ptr<NcclCommunicator>>& communicators) {
  std::vector<nccl::Comm> comms;
  for (const auto& each : communicators) each->is_aborted_.store(true);
  for (const auto& each : communicators) {
    if (const nccl::Comm comm = each->Take(); comm != nullptr) comms.push_back(comm);
  }
  if (comms.empty()) return;
  const NcclCommunicator& any = *communicators.front();
  (void)any.driver_->Run(any.device_, [&] {
    (void)any.library_->ncclGroupStart();
    for (const nccl::Comm comm : comms) (void)any.library_->ncclCommAbort(comm);
    (void)any.library_->ncclGroupEnd();
    return Status();
  });
}

}  // namespace rabit

// NcclCommunicator: this rank's part in a group of devices.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "backend/nccl/nccl_library.h"
#include "base/bytes.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "base/status.h"

namespace rabit {

// It never blocks in NCCL: what NCCL does in the background is asked for until the deadline, and
// every wait ends with AbortAll.  Calls are made by one thread at a time, AbortAll and Failure by
// any.  Communicators end together, all of one library and driver: NCCL then waits for the kernels
// of each, which may stand on a stream behind those of another.
class NcclCommunicator {
 public:
  // A call of NCCL with the communicator.
  using Call = std::function<nccl::Result(nccl::Comm)>;

  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<DeviceDriver> driver,
                   int device)
      : library_(std::move(library)), driver_(std::move(driver)), device_(device) {}
  NcclCommunicator(const NcclCommunicator&) = delete;

  int device() const { return device_; }

  // Collective.  Until all members of `identity` have come.
  Status Open(const nccl::UniqueId& identity, int rank, int size, Deadline deadline);
  // Until what `call` begins is on its stream.
  Status Make(const char* what, const Call& call, Deadline deadline);
  // What NCCL says of what it has been told before; kAborted after AbortAll.
  Status Failure();

  using Several = std::vector<std::shared_ptr<NcclCommunicator>>;
  // Kernels that wait for other ranks end, and what has not reached these is lost.
  static void AbortAll(const Several& communicators);
  // When all that they were told is done, and has reached the other ranks; what that takes too
  // long for is aborted.  Nobody calls them any more.
  static void CloseAll(const Several& communicators);

 private:
  // Makes the call with the device current; kAborted after AbortAll.
  Status Guarded(const char* what, const Call& call, nccl::Result& result);
  // What NCCL says of what it does in the background.  The driver is not asked: it may wait for the
  // kernels that are to be given up.
  Status Ask(const char* what, nccl::Result& result);
  Status AwaitProgress(const char* what, nccl::Result result, Deadline deadline);
  nccl::Comm Take();  // null: there is none, or it has been taken

  struct End {
    std::shared_ptr<NcclCommunicator> communicator;
    bool is_flushed;  // else it is aborted
  };
  // On a thread of its own, which is left behind if NCCL does not return.
  static void EndAside(std::vector<End> ends);
  static nccl::Result EndTogether(const std::vector<End>& ends);
  nccl::Result EndGroup(const std::vector<nccl::Comm>& destroyed) const;

  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<DeviceDriver> driver_;
  const int device_;
  bool is_whole_ = false;  // all calls have succeeded; of the thread that makes them
  std::atomic<bool> is_aborted_{false};
  nccl::Comm handle_ = nullptr;  // NCCL writes it once more when the communicator is there
  Mutex mutex_;
  nccl::Comm comm_ RABIT_GUARDED_BY(mutex_) = nullptr;  // null before Open, and once taken
};

}  // namespace rabit

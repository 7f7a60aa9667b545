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
// any.
class NcclCommunicator {
 public:
  // A call of NCCL with the communicator.
  using Call = std::function<nccl::Result(nccl::Comm)>;

  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<DeviceDriver> driver,
                   int device)
      : library_(std::move(library)), driver_(std::move(driver)), device_(device) {}
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;

  int device() const { return device_; }

  // Collective.  Until all members of `identity` have come.
  Status Open(const nccl::UniqueId& identity, int rank, int size, Deadline deadline);
  // Until what `call` begins is on its stream.
  Status Make(const char* what, const Call& call, Deadline deadline);
  // What NCCL says of what it has been told before; kAborted after AbortAll.
  Status Failure();
  // Kernels that wait for other ranks end.  All at once: NCCL waits for the kernels of each, and
  // these may stand on a stream behind those of another.  All are of one library and driver.
  static void AbortAll(const std::vector<std::shared_ptr<NcclCommunicator>>& communicators);

 private:
  // Makes the call with the device current; kAborted after AbortAll.
  Status Guarded(const char* what, const Call& call, nccl::Result& result);
  Status AwaitProgress(const char* what, nccl::Result result, Deadline deadline);
  nccl::Comm Take();  // null: there is none, or it has been taken

  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<DeviceDriver> driver_;
  const int device_;
  std::atomic<bool> is_aborted_{false};
  Mutex mutex_;
  nccl::Comm comm_ RABIT_GUARDED_BY(mutex_) = nullptr;  // null before Open, and once taken
};

}  // namespace rabit

// PendingRequest: one submitted request, from Submit until its handle is released.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/wake_signal.h"
#include "engine/aligned_memory.h"
#include "engine/request.h"

namespace rabit {

// A name in use, or used before.  Handle table only.
struct NamedTensor {
  bool is_open = false;
  std::pair<uint32_t, int64_t> recorded{0, -1};  // see Record::NameOf
};

// It is finished by whoever drops the last hold.  The engine thread has one hold until it has
// handed the last partition to a lane, and every partition on a lane has one: a handle therefore
// never finishes while a lane may still touch its memory.
//
// Before that it may be launched: whatever is left to do for it is done by devices, and events
// stand for it.  Every hold is launched once, at the latest when it is dropped.
class PendingRequest {
 public:
  PendingRequest(Handle handle, Request request, NamedTensor& named, std::chrono::microseconds spin,
                 int64_t submitted_ns);

  // In the order in which the engine thread looks at them.
  const int64_t submitted_ns;
  const Handle handle;
  NamedTensor& named;  // the handle table's, until the name is closed
  const Request request;
  bool is_agreed = false;  // engine core and who does its steps only

  // "allreduce 'conv1.weight' on rank 3"
  std::string Describe(int rank) const;

  void AddHold() {
    holds_.fetch_add(1, std::memory_order_relaxed);
    unlaunched_.fetch_add(1, std::memory_order_relaxed);
  }
  // True for the last one: the caller must finish the request.
  [[nodiscard]] bool DropHold();
  // The result of a partition is there when `event` is over, which its lane keeps until Arrive.
  void Await(const DeviceEvent& event);
  void Arrive(const DeviceEvent& event);
  // A hold is launched.  True for the last one: the request is, and Launch is to be called.
  [[nodiscard]] bool DropUnlaunched();
  // The first error is kept.  Before the caller's own hold is dropped.
  void SetError(const Status& status);

  // Gives `output()` its memory: what the caller passed, or memory of our own, which is the host's.
  // The thread that runs the request; several partitions may ask, and get the same.
  Status PrepareOutput(std::vector<int64_t> shape);
  // Has `input()` be a copy from now on, because the output will be written where it lies.  As
  // PrepareOutput; before anything is written.
  Status CopyInput();
  // The memory of the input; whoever has called CopyInput, or nobody does.
  const std::byte* input() const;
  void SetReceivedSplits(std::vector<int64_t> splits) {
    output_.received_splits = std::move(splits);
  }

  // The handle table only.
  void Launch();
  void Finish();  // publishes; stops the process when called twice
  bool WaitLaunched(Deadline deadline);
  bool WaitFinished(Deadline deadline);
  bool is_launched() const { return is_launched_.load(std::memory_order_acquire) || is_finished(); }
  bool is_finished() const { return is_finished_.load(std::memory_order_acquire); }

  // Once launched: what is put on `stream`, of the request's device, from here on comes after the
  // result.  The error of the request, as far as it is known.
  Status OrderBefore(void* stream);

  // Once finished.
  const Status& status() const { return status_; }
  // Once launched.
  const HandleOutput& output() const { return output_; }

 private:
  std::atomic<int32_t> holds_{1};
  std::atomic<int32_t> unlaunched_{1};
  std::atomic<bool> is_launched_{false};
  std::atomic<bool> is_finished_{false};
  WakeSignal finished_;

  Mutex mutex_;
  Status status_;  // written under mutex_ before is_finished_, constant afterwards
  HandleOutput output_;
  AlignedMemory owned_;
  AlignedMemory input_copy_;
  std::vector<const DeviceEvent*> awaited_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

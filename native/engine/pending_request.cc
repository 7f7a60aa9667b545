#include "engine/pending_request.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace rabit {

PendingRequest::PendingRequest(Handle handle, Request request, NamedTensor& named,
                               std::chrono::microseconds spin, int64_t submitted_ns)
    : submitted_ns(submitted_ns),
      handle(handle),
      named(named),
      request(std::move(request)),
      finished_(spin) {}

std::string PendingRequest::Describe(int rank) const {
  return std::string(Name(request.signature.kind)) + " '" + request.name + "' on rank " +
         std::to_string(rank);
}

bool PendingRequest::DropHold() {
  // The release half publishes what this holder has written to the output; the acquire half of the
  // last one sees what all have.
  const int32_t before = holds_.fetch_sub(1, std::memory_order_acq_rel);
  // A hold that is dropped twice would finish the request while a lane still writes to its output.
  RABIT_CHECK(before > 0, "request '" + request.name + "' has no hold left to drop");
  return before == 1;
}

void PendingRequest::Await(const DeviceEvent& event) {
  MutexLock lock(mutex_);
  awaited_.push_back(&event);
}

void PendingRequest::Arrive(const DeviceEvent& event) {
  MutexLock lock(mutex_);
  // The lock orders this before its lane reuses the event: OrderBefore holds it while it uses the
  // events.
  awaited_.erase(std::find(awaited_.begin(), awaited_.end(), &event));
}

bool PendingRequest::DropUnlaunched() {
  return unlaunched_.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

void PendingRequest::SetError(const Status& status) {
  MutexLock lock(mutex_);
  // Lanes of several partitions may fail at the same time; the first error is the cause, later ones
  // follow from it.
  if (status_.ok()) status_ = status;
}

Status PendingRequest::PrepareOutput(std::vector<int64_t> shape) {
  MutexLock lock(mutex_);
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  // Partitions on several lanes come here in any order; the first one prepares the output for all.
  if (output_.view.data != nullptr) return Status();
  const DType dtype = request.signature.dtype;
  output_.view = TensorView{request.output.data, count, dtype, request.output.device};
  output_.shape = std::move(shape);
  const bool has_room = request.output.data != nullptr && request.output.count >= count;
  if (has_room) return Status();
  // The collective must run even if the caller's output is too small: the other ranks are in it.
  output_.view.device = Device{};
  owned_ = AllocateAligned(output_.view.bytes());
  if (owned_ == nullptr) {
    return ResourceExhausted("no memory for " + std::to_string(output_.view.bytes()) +
                             " bytes of output: the machine is out of memory; use smaller tensors");
  }
  output_.view.data = owned_.get();
  if (request.output.data != nullptr && status_.ok()) {
    status_ = InvalidArgument(Describe(-1) + ": the output has room for " +
                              std::to_string(request.output.count) + " elements but " +
                              std::to_string(count) + " arrived: pass no output, or a larger one");
  }
  return Status();
}

Status PendingRequest::CopyInput() {
  MutexLock lock(mutex_);
  if (input_copy_ != nullptr) return Status();
  const size_t bytes = request.input.bytes();
  input_copy_ = AllocateAligned(bytes);
  if (input_copy_ == nullptr) {
    return ResourceExhausted("no memory for a copy of " + std::to_string(bytes) +
                             " bytes of input, which the output overlaps: pass an output apart " +
                             "from the input");
  }
  std::memcpy(input_copy_.get(), request.input.data, bytes);
  return Status();
}

const std::byte* PendingRequest::input() const {
  // There is no lock: the copy is made before the exchange of the bucket that reads it, on the same
  // lane.
  if (input_copy_ != nullptr) return input_copy_.get();
  return static_cast<const std::byte*>(request.input.data);
}

Status PendingRequest::OrderBefore(void* stream) {
  MutexLock lock(mutex_);
  if (!status_.ok()) return status_;
  const int device = request.device.index;
  for (const DeviceEvent* const event : awaited_) {
    RABIT_RETURN_IF_ERROR(event->driver().CheckRuns(device, stream));
    RABIT_RETURN_IF_ERROR(event->driver().Await(device, stream, event->get()));
  }
  return Status();
}

void PendingRequest::Launch() {
  // WaitFinished sleeps on the same signal and is woken here for nothing; it looks again and sleeps
  // on.
  is_launched_.store(true, std::memory_order_release);
  finished_.Notify();
}

void PendingRequest::Finish() {
  // The waiter may free its tensors as soon as it sees this, so nothing of the request's memory is
  // touched behind it.
  const bool was_finished = is_finished_.exchange(true, std::memory_order_acq_rel);
  RABIT_CHECK(!was_finished, "request '" + request.name + "' was finished twice");
  finished_.Notify();
}

bool PendingRequest::WaitLaunched(Deadline deadline) {
  return finished_.Wait([this] { return is_launched(); }, deadline);
}

bool PendingRequest::WaitFinished(Deadline deadline) {
  return finished_.Wait([this] { return is_finished(); }, deadline);
}

}  // namespace rabit

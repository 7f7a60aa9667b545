#include "engine/device_bucket.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "arithmetic/reduce.h"
#include "backend/on_stream.h"

namespace rabit {
namespace {

// Longer than kernels take to end that were told to; their memory may not go before.
constexpr auto kEndWithin = std::chrono::seconds(10);

}  // namespace

void DeviceScratch::Reset(const std::shared_ptr<DeviceDriver>& driver, int device) {
  driver_ = driver;
  device_ = device;
  arenas_[device].Reuse();
}

Result<Bytes> DeviceScratch::Take(size_t bytes) {
  RABIT_ASSIGN_OR_RETURN(std::byte* const begin,
                         arenas_[device_].Take(bytes, [this](size_t target) {
                           return MakeMemory(driver_, device_, target);
                         }));
  return Bytes(begin, bytes);
}

DeviceBucket::~DeviceBucket() {
  if (!is_under_way_) return;
  (void)WaitOver(*place_.driver, place_.device, event_.get(), After(kEndWithin));
}

Status DeviceBucket::Begin(Devices& devices, const BucketJob& job, Deadline deadline) {
  if (is_under_way_) {
    RABIT_RETURN_IF_ERROR(WaitOver(*place_.driver, place_.device, event_.get(), deadline));
    is_under_way_ = false;
  }
  pinned_.Reuse();
  arrivals_.clear();
  RABIT_ASSIGN_OR_RETURN(place_.driver, devices.driver());
  RABIT_ASSIGN_OR_RETURN(int device, devices.last_used());  // of a rank that has joined
  for (const BucketItem& item : job.items) {
    if (item.request() != nullptr) device = item.request()->request.device.index;
  }
  RABIT_ASSIGN_OR_RETURN(const Devices::Streams* const streams, devices.StreamsOf(device));
  place_.stream = streams->exchange.get();
  if (!event_ || place_.device != device) {
    RABIT_ASSIGN_OR_RETURN(event_, MakeEvent(place_.driver, device));
  }
  place_.device = device;
  scratch_.Reset(place_.driver, device);
  return AwaitInputs(job);
}

Status DeviceBucket::AwaitInputs(const BucketJob& job) {
  const DeviceEvent* last = nullptr;  // the gradients of a backward pass have one
  for (const BucketItem& item : job.items) {
    if (item.request() == nullptr || !item.request()->request.is_early) continue;
    const DeviceEvent* const ready = item.request()->request.ready.get();
    if (ready == last) continue;
    RABIT_RETURN_IF_ERROR(place_.driver->Await(place_.device, place_.stream, ready->get()));
    last = ready;
  }
  return Status();
}

Result<std::byte*> DeviceBucket::Pinned(size_t bytes) {
  return pinned_.Take(
      bytes, [this](size_t target) { return MakePinned(place_.driver, place_.device, target); });
}

Status DeviceBucket::Copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (to == from) return Status();
  return place_.driver->CopyWithin(place_.device, place_.stream, to, from, bytes);
}

Status DeviceBucket::CopyToHost(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return Status();
  RABIT_ASSIGN_OR_RETURN(std::byte* const image, Pinned(bytes));
  RABIT_RETURN_IF_ERROR(
      place_.driver->CopyToHost(place_.device, place_.stream, image, from, bytes));
  arrivals_.push_back({to, image, bytes});
  return Status();
}

Status DeviceBucket::FillIdentity(ReduceOp op, DType dtype, std::byte* to, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  if (bytes == 0) return Status();
  RABIT_ASSIGN_OR_RETURN(std::byte* const image, Pinned(bytes));
  rabit::FillIdentity(op, dtype, image, count);
  return place_.driver->CopyToDevice(place_.device, place_.stream, to, image, bytes);
}

Status DeviceBucket::Record() {
  const Status status = place_.driver->Record(place_.device, event_.get(), place_.stream);
  is_under_way_ = status.ok();
  return status;
}

bool DeviceBucket::IsOver(Backend& backend, const Group& group, Deadline until) {
  const Status status = WaitOnStream(backend, group, place_, event_.get(), until);
  if (status.code() == Code::kTimedOut) return false;
  if (failed_.ok()) failed_ = status;
  return true;
}

Status DeviceBucket::Wait(Backend& backend, const Group& group, Deadline deadline) {
  Status status = std::exchange(failed_, Status());
  if (status.ok()) status = WaitOnStream(backend, group, place_, event_.get(), deadline);
  if (status.code() == Code::kTimedOut) return status;
  if (!status.ok()) {
    GiveUp(backend, status);
    return status;
  }
  is_under_way_ = false;
  for (const Arrival& arrival : arrivals_) std::memcpy(arrival.to, arrival.from, arrival.bytes);
  arrivals_.clear();
  return status;
}

void DeviceBucket::GiveUp(Backend& backend, const Status& why) {
  backend.Abort(why);
  const bool has_ended =
      is_under_way_ &&
      WaitOver(*place_.driver, place_.device, event_.get(), After(kEndWithin)).ok();
  is_under_way_ = is_under_way_ && !has_ended;
}

}  // namespace rabit

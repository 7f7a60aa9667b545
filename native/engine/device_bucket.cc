#include "engine/device_bucket.h"

#include <algorithm>
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

DeviceBucket::~DeviceBucket() {
  if (!is_under_way_) return;
  (void)WaitOver(*place_.driver, place_.device, event_.get(), After(kEndWithin));
}

Status DeviceBucket::Begin(Devices& devices, const BucketJob& job, Deadline deadline) {
  if (is_under_way_) {
    RABIT_RETURN_IF_ERROR(WaitOver(*place_.driver, place_.device, event_.get(), deadline));
    is_under_way_ = false;
  }
  scratch_.Reset();
  pinned_.Reset();
  arrivals_.clear();
  RABIT_ASSIGN_OR_RETURN(place_.driver, devices.driver());
  int device = devices.last_used();  // of a rank that has joined
  for (const BucketItem& item : job.items) {
    if (item.request() != nullptr) device = item.request()->request.device.index;
  }
  RABIT_ASSIGN_OR_RETURN(const Devices::Streams* const streams, devices.StreamsOf(device));
  place_.stream = streams->exchange.get();
  if (!event_ || place_.device != device) {
    // What was taken of another device is of no use here.
    scratch_ = {};
    RABIT_ASSIGN_OR_RETURN(event_, MakeEvent(place_.driver, device));
  }
  place_.device = device;
  return Status();
}

Result<Bytes> DeviceBucket::Scratch(size_t bytes) {
  RABIT_ASSIGN_OR_RETURN(std::byte* const begin, scratch_.Take(bytes, [this](size_t target) {
    return MakeMemory(place_.driver, place_.device, std::max<size_t>(target, 1));
  }));
  return Bytes(begin, bytes);
}

Result<std::byte*> DeviceBucket::Pinned(size_t bytes) {
  return pinned_.Take(bytes, [this](size_t target) {
    return MakePinned(place_.driver, place_.device, std::max<size_t>(target, 1));
  });
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
  return WaitOnStream(backend, group, place_, event_.get(), until).code() != Code::kTimedOut;
}

Status DeviceBucket::Wait(Backend& backend, const Group& group, Deadline deadline) {
  const Status status = WaitOnStream(backend, group, place_, event_.get(), deadline);
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

#include "engine/device_bucket.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "arithmetic/reduce.h"
#include "backend/on_stream.h"
#include "engine/averaging.h"

namespace rabit {
namespace {

// Longer than kernels take to end that were told to; their memory may not go before.
constexpr auto kEndWithin = std::chrono::seconds(10);
constexpr size_t kScratchAlignment = 256;

}  // namespace

void DeviceScratch::Reset(const std::shared_ptr<DeviceDriver>& driver, int device) {
  driver_ = driver;
  device_ = device;
  used_ = 0;
}

Result<Bytes> DeviceScratch::Take(size_t bytes) {
  std::vector<Region>& regions = regions_[device_];
  const size_t taken =
      (std::max<size_t>(bytes, 1) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  if (regions.empty() || regions.back().bytes - used_ < taken) {
    // Twice as large, so that after a few buckets one region serves them all.
    const size_t target = std::max(taken, regions.empty() ? 0 : 2 * regions.back().bytes);
    RABIT_ASSIGN_OR_RETURN(DeviceMemory memory, MakeMemory(driver_, device_, target));
    regions.push_back({std::move(memory), target});
    used_ = 0;
  }
  auto* const begin = static_cast<std::byte*>(regions.back().memory.get()) + used_;
  used_ += taken;
  return Bytes(begin, bytes);
}

Status DeviceBucket::Prepare(const LaneServices& services, const BucketJob& job,
                             Deadline deadline) {
  services_ = &services;
  job_ = &job;
  deadline_ = deadline;
  // Nothing is put on the stream yet: buckets before this one may still take from the scratch.
  backend_ = &services.BackendOf(job.route->executor);
  return Status();
}

Status DeviceBucket::Begin() {
  RABIT_RETURN_IF_ERROR(tail_.Wait(deadline_));
  failed_ = Status();
  pinned_.clear();
  identity_ = PinnedBlock();
  arrivals_.clear();
  Devices& devices = services_->devices;
  RABIT_ASSIGN_OR_RETURN(place_.driver, devices.driver());
  RABIT_ASSIGN_OR_RETURN(int device, devices.last_used());  // of a rank that has joined
  for (const BucketItem& item : job_->items) {
    if (item.request() != nullptr) device = item.request()->request.device.index;
  }
  RABIT_ASSIGN_OR_RETURN(const Devices::Streams* const streams, devices.StreamsOf(device));
  place_.stream = streams->exchange.get();
  place_.device = device;
  place_.pinned = devices.pinned;
  place_.factor = job_->bucket.prescale * job_->bucket.postscale;
  scratch_.Reset(place_.driver, device);
  return AwaitInputs();
}

Status DeviceBucket::AwaitInputs() {
  const DeviceEvent* last = nullptr;  // the gradients of a backward pass have one
  for (const BucketItem& item : job_->items) {
    if (item.request() == nullptr || !item.request()->request.is_early) continue;
    const DeviceEvent* const ready = item.request()->request.ready.get();
    if (ready == last) continue;  // a wait costs a call of the driver
    RABIT_RETURN_IF_ERROR(place_.driver->Await(place_.device, place_.stream, ready->get()));
    last = ready;
  }
  return Status();
}

// Whatever output the engine makes lies in the memory of the host.
bool DeviceBucket::CanReachOutput(const BucketItem& item) const {
  const TensorView& given = item.request()->request.output;
  return given.data != nullptr && given.device.kind != DeviceKind::kCpu;
}

// The host cannot copy the input aside; the bucket packs it on the stream instead.
Result<bool> DeviceBucket::KeepInput(const BucketItem& item) {
  return !OverwritesInput(item, *job_);
}

Status DeviceBucket::Copy(std::byte* to, ConstBytes from) {
  if (to == from.data()) return Status();
  return place_.driver->CopyWithin(place_.device, place_.stream, to, from.data(), from.size());
}

Status DeviceBucket::Bring(const BucketItem& item, const std::byte* from, std::byte* to,
                           int64_t count, double) {
  const Bucket& bucket = job_->bucket;
  const size_t bytes = static_cast<size_t>(count) * SizeOf(bucket.dtype);
  if (item.request() != nullptr) return Copy(to, {from, bytes});
  if (bytes == 0) return Status();
  // All of it is alike, so one piece serves the whole bucket, copied as often as it takes.
  if (!identity_) {
    const auto all = static_cast<size_t>(job_->load.bytes);
    RABIT_ASSIGN_OR_RETURN(identity_, place_.pinned->TakePiece(place_.driver, place_.device, all));
    const size_t elements = identity_.bytes() / SizeOf(bucket.dtype);
    FillIdentity(WireOp(bucket.op), bucket.dtype, identity_.data(), static_cast<int64_t>(elements));
  }
  for (size_t at = 0; at < bytes; at += identity_.bytes()) {
    const size_t part = std::min(bytes - at, identity_.bytes());
    RABIT_RETURN_IF_ERROR(
        place_.driver->CopyToDevice(place_.device, place_.stream, to + at, identity_.data(), part));
  }
  return Status();
}

Status DeviceBucket::HandOver(const BucketItem& item, std::byte* to, ConstBytes from) {
  if (CanReachOutput(item)) return Copy(to, from);
  if (from.empty()) return Status();
  RABIT_ASSIGN_OR_RETURN(PinnedBlock image,
                         place_.pinned->Take(place_.driver, place_.device, from.size()));
  if (!image) return CopyInPieces(to, from);
  RABIT_RETURN_IF_ERROR(place_.driver->CopyToHost(place_.device, place_.stream, image.data(),
                                                  from.data(), from.size()));
  arrivals_.push_back({to, image.data(), from.size()});
  pinned_.push_back(std::move(image));
  return Status();
}

// The wait looks at the backend as well: a piece comes behind kernels that may wait for a lost
// rank.
Status DeviceBucket::CopyInPieces(std::byte* to, ConstBytes from) {
  RABIT_ASSIGN_OR_RETURN(PinnedBlock taken,
                         place_.pinned->TakePiece(place_.driver, place_.device, from.size()));
  const size_t piece_bytes = taken.bytes();
  std::byte* const piece = taken.data();
  pinned_.push_back(std::move(taken));  // a copy that times out goes on, and needs it
  for (size_t at = 0; at < from.size(); at += piece_bytes) {
    const size_t part = std::min(from.size() - at, piece_bytes);
    RABIT_RETURN_IF_ERROR(
        place_.driver->CopyToHost(place_.device, place_.stream, piece, from.data() + at, part));
    RABIT_RETURN_IF_ERROR(tail_.Record(place_.driver, place_.device, place_.stream));
    RABIT_RETURN_IF_ERROR(
        WaitOnStream(*backend_, *job_->group, place_, tail_.event().get(), deadline_));
    std::memcpy(to + at, piece, part);
  }
  pinned_.pop_back();
  return Status();
}

Status DeviceBucket::Launch(const Status& exchanged) {
  // Also behind what was put there before something failed: its memory is in use.
  const Status recorded = tail_.Record(place_.driver, place_.device, place_.stream);
  const Status& status = exchanged.ok() ? recorded : exchanged;
  if (!status.ok()) GiveUp(status);
  return status;
}

Status DeviceBucket::Wait(Deadline until) {
  if (!tail_.is_under_way() || !failed_.ok()) return failed_;
  const Status status = WaitOnStream(*backend_, *job_->group, place_, tail_.event().get(), until);
  if (status.code() == Code::kTimedOut) return status;
  if (!status.ok()) {
    GiveUp(status);
    return status;
  }
  // The images have arrived; the lane copies them on, as nobody may touch outputs once it
  // concludes.
  tail_.Pass();
  for (const Arrival& arrival : arrivals_) std::memcpy(arrival.to, arrival.from, arrival.bytes);
  arrivals_.clear();
  pinned_.clear();
  identity_ = PinnedBlock();
  return status;
}

// Kernels that wait for a lost rank end only when their backend is aborted.
void DeviceBucket::GiveUp(const Status& why) {
  failed_ = why;
  backend_->Abort(why);
  (void)tail_.Wait(After(kEndWithin));
}

}  // namespace rabit

#include "engine/staged_bucket.h"

#include <algorithm>
#include <cstring>

#include "base/kind.h"

namespace rabit {
namespace {

constexpr size_t kImageAlignment = 64;

bool LiesOnDevice(const TensorView& view) {
  return view.data != nullptr && view.device.kind != DeviceKind::kCpu;
}

// A tensor goes on where its partition before ended, so that the two are one again.
bool GoesOn(const BucketJob& job, size_t item) {
  if (item == 0 || !IsInPlace(job.bucket.kind)) return false;
  const BucketItem& before = job.items[item - 1];
  const BucketItem& here = job.items[item];
  return before.tensor == here.tensor &&
         before.partition.offset + before.partition.count == here.partition.offset;
}

// Of the first `slices`, which an image has one behind the other.
size_t BytesOf(const BucketItem& item, const BucketJob& job, Side side, int64_t slices) {
  size_t bytes = 0;
  for (int64_t part = 0; part < slices; ++part) bytes += ChunkOf(item, job, side, part).bytes;
  return bytes;
}

}  // namespace

std::byte* StagedBucket::ImageOf(const BucketItem& item, Side side) const {
  const Image& image = images_[static_cast<size_t>(&item - job_->items.data())];
  return memory_ + (side == Side::kInput ? image.input : image.output);
}

size_t StagedBucket::Place() {
  const BucketJob& job = *job_;
  size_t end = 0;
  const auto align = [&end] {
    end = (end + kImageAlignment - 1) / kImageAlignment * kImageAlignment;
  };
  images_.assign(job.items.size(), Image{});
  for (size_t i = 0; i < job.items.size(); ++i) {
    const BucketItem& item = job.items[i];
    if (item.request() == nullptr) continue;
    if (!GoesOn(job, i)) align();
    images_[i].input = images_[i].output = end;
    end += BytesOf(item, job, Side::kInput, Chunks(job.bucket, Side::kInput));
    // What the engine makes is in the memory of the host and needs no image.
    if (IsInPlace(job.bucket.kind) || !LiesOnDevice(item.request()->request.output)) continue;
    align();
    images_[i].output = end;
    end += BytesOf(item, job, Side::kOutput, Chunks(job.bucket, Side::kOutput));
  }
  return end;
}

bool StagedBucket::IsCopied(const BucketItem& item, Side side) const {
  const Bucket& bucket = job_->bucket;
  if (item.request() == nullptr) return false;
  const bool is_root = bucket.root == services_->rank;
  if (side == Side::kOutput) {
    return (bucket.kind != Kind::kReduce || is_root) && LiesOnDevice(item.request()->output().view);
  }
  // The bucket of a message has the sender's kind; the receiver has its own.
  if (item.request()->request.signature.kind == Kind::kRecv) return false;
  return !TraitsOf(bucket.kind).starts_at_root || is_root;
}

// Copying ahead is worth it only where it does not keep the lane, so it is left to Begin if there
// is no room in pinned memory.
Status StagedBucket::Prepare(const LaneServices& services, const BucketJob& job,
                             Deadline deadline) {
  const Status before = Wait(deadline);  // copies of the last bucket use the memory
  if (before.code() == Code::kTimedOut) return before;
  failed_ = Status();  // of the bucket before, which has told it
  services_ = &services;
  job_ = &job;
  deadline_ = deadline;
  RABIT_RETURN_IF_ERROR(host_.Prepare(services, job, deadline));
  RABIT_ASSIGN_OR_RETURN(driver_, services.devices.driver());
  bytes_ = Place();
  RABIT_ASSIGN_OR_RETURN(const int device, services.devices.last_used());
  RABIT_ASSIGN_OR_RETURN(pinned_, services.devices.pinned->Take(driver_, device, bytes_));
  memory_ = pinned_.data();
  is_copied_in_ = static_cast<bool>(pinned_);
  return is_copied_in_ ? CopyAll(Side::kInput) : Status();
}

Status StagedBucket::Begin() {
  if (!is_copied_in_) {
    PinnedPool& pool = *services_->devices.pinned;
    RABIT_ASSIGN_OR_RETURN(const int device, services_->devices.last_used());
    RABIT_ASSIGN_OR_RETURN(pinned_, pool.Take(driver_, device, bytes_));
    memory_ = pinned_.data();
    if (!pinned_) {
      RABIT_ASSIGN_OR_RETURN(const Bytes images, Scratch(FusionBuffer::kImages, bytes_));
      RABIT_ASSIGN_OR_RETURN(pinned_, pool.TakePiece(driver_, device, bytes_));
      memory_ = images.data();
    }
    RABIT_RETURN_IF_ERROR(CopyAll(Side::kInput));
  }
  // After a timeout a copy still writes to the images: the memory stays until Wait has seen its
  // end.
  for (auto& [device, tail] : tails_) {
    const Status status = tail.Wait(deadline_);
    if (failed_.ok()) failed_ = status;
  }
  return failed_;
}

Status StagedBucket::Launch(const Status& exchanged) {
  if (!exchanged.ok()) return exchanged;
  return CopyAll(Side::kOutput);
}

Status StagedBucket::CopyAll(Side side) {
  const bool is_input = side == Side::kInput;
  std::map<int, const DeviceStream*> told;
  Status status;
  for (const BucketItem& item : job_->items) {
    if (!IsCopied(item, side)) continue;
    const Request& request = item.request()->request;
    const int device = (is_input ? request.input : item.request()->output().view).device.index;
    const Result<const Devices::Streams*> streams = services_->devices.StreamsOf(device);
    if (!(status = streams.status()).ok()) break;
    const DeviceStream& stream = is_input ? (*streams)->to_host : (*streams)->to_device;
    told[device] = &stream;
    // What is put here comes after the kernels that compute the tensor, which nothing has waited
    // for if it is early; that holds of an output that is not read here as well.
    if (request.is_early) status = driver_->Await(device, stream.get(), request.ready->get());
    std::byte* image = ImageOf(item, side);
    for (int64_t part = 0; status.ok() && part < Chunks(job_->bucket, side); ++part) {
      const Bytes chunk = InTensor(item, *job_, side, part);
      status = CopyChunk(stream, side, chunk.data(), image, chunk.size());
      image += chunk.size();
    }
    if (!status.ok()) break;
  }
  // Also behind copies before one that was refused: their memory is in use.
  for (const auto& [device, stream] : told) {
    const Status recorded = tails_[device].Record(driver_, device, stream->get());
    if (status.ok()) status = recorded;
  }
  return status;
}

Status StagedBucket::CopyChunk(const DeviceStream& stream, Side side, std::byte* tensor,
                               std::byte* image, size_t bytes) {
  const int device = stream.device();
  const bool is_input = side == Side::kInput;
  const auto copy = [&](std::byte* host, std::byte* there, size_t count) {
    return is_input ? driver_->CopyToHost(device, stream.get(), host, there, count)
                    : driver_->CopyToDevice(device, stream.get(), there, host, count);
  };
  if (memory_ == pinned_.data()) return copy(image, tensor, bytes);
  // One piece after the other: the next one overwrites it.
  for (size_t at = 0; at < bytes; at += pinned_.bytes()) {
    const size_t count = std::min(bytes - at, pinned_.bytes());
    if (!is_input) std::memcpy(pinned_.data(), image + at, count);
    RABIT_RETURN_IF_ERROR(copy(pinned_.data(), tensor + at, count));
    RABIT_RETURN_IF_ERROR(tails_[device].Record(driver_, device, stream.get()));
    RABIT_RETURN_IF_ERROR(tails_[device].Wait(deadline_));
    if (is_input) std::memcpy(image + at, pinned_.data(), count);
  }
  return Status();
}

Status StagedBucket::Wait(Deadline until) {
  for (auto& [device, tail] : tails_) {
    const Status status = tail.Wait(until);
    if (status.code() == Code::kTimedOut) return status;
    if (failed_.ok()) failed_ = status;
  }
  pinned_ = PinnedBlock();  // nothing reads or writes it any more
  return failed_;
}

const DeviceEvent* StagedBucket::ResultOf(const BucketItem& item) const {
  const TensorView& output = item.request()->output().view;
  if (!LiesOnDevice(output)) return nullptr;
  // Only copies to the output can be under way here: Begin has waited for those of the input.
  const auto tail = tails_.find(output.device.index);
  return tail != tails_.end() && tail->second.is_under_way() ? &tail->second.event() : nullptr;
}

Bytes StagedBucket::Slice(const BucketItem& item, Side side, int64_t part) const {
  const bool has_image = side == Side::kInput || LiesOnDevice(item.request()->output().view);
  if (!has_image) return InTensor(item, *job_, side, part);
  return {ImageOf(item, side) + BytesOf(item, *job_, side, part),
          ChunkOf(item, *job_, side, part).bytes};
}

}  // namespace rabit

#include "engine/staged_bucket.h"

#include <algorithm>
#include <chrono>

#include "base/kind.h"
#include "engine/tensor_chunks.h"

namespace rabit {
namespace {

constexpr size_t kAlignment = 64;
// Longer than any copy takes; the memory may not go before a copy has ended.
constexpr auto kLastWait = std::chrono::seconds(10);

const PendingRequest* OnDevice(const BucketItem& item) {
  const PendingRequest* const pending = item.request();
  return pending != nullptr && pending->request.device.kind != DeviceKind::kCpu ? pending : nullptr;
}

bool ReadsInput(const BucketJob& job, const PendingRequest& pending, int rank) {
  const Signature& mine = pending.request.signature;
  if (mine.kind == Kind::kRecv) return false;
  return !TraitsOf(job.bucket.kind).starts_at_root || job.bucket.root == rank;
}

// A tensor goes on where its partition before ended, so that the two are one again.
bool GoesOn(const BucketJob& job, size_t item) {
  if (item == 0 || !IsInPlace(job.bucket.kind)) return false;
  const BucketItem& before = job.items[item - 1];
  const BucketItem& here = job.items[item];
  return before.tensor == here.tensor &&
         before.partition.offset + before.partition.count == here.partition.offset;
}

size_t IndexOf(const BucketItem& item, const BucketJob& job) {
  return static_cast<size_t>(&item - job.items.data());
}

}  // namespace

bool StagedBucket::IsNeeded(const BucketJob& job) {
  if (job.bucket.device_kind == DeviceKind::kCpu) return false;
  return std::any_of(job.items.begin(), job.items.end(),
                     [](const BucketItem& item) { return OnDevice(item) != nullptr; });
}

StagedBucket::~StagedBucket() { (void)Wait(After(kLastWait)); }

// Returns how many bytes all images take together.
size_t StagedBucket::Place(const BucketJob& job) {
  size_t end = 0;
  const auto align = [&end] { end = (end + kAlignment - 1) / kAlignment * kAlignment; };
  images_.assign(job.items.size(), Image{});
  for (size_t i = 0; i < job.items.size(); ++i) {
    const PendingRequest* const pending = OnDevice(job.items[i]);
    if (pending == nullptr) continue;
    if (!GoesOn(job, i)) align();
    images_[i].input = images_[i].output = end;
    end += TotalBytes(InputChunks(job.items[i], job));
    const TensorView& output = pending->request.output;
    const bool is_on_host = output.data == nullptr || output.device.kind == DeviceKind::kCpu;
    if (IsInPlace(job.bucket.kind) || is_on_host) continue;
    align();
    images_[i].output = end;
    end += TotalBytes(OutputChunks(job.items[i], job, output.bytes()));
  }
  return end;
}

Status StagedBucket::Reserve(int device, size_t bytes) {
  arena_.Reuse();
  RABIT_ASSIGN_OR_RETURN(memory_, arena_.Take(bytes, [this, device](size_t target) {
    return MakePinned(driver_, device, target);
  }));
  return Status();
}

Result<StagedBucket::Told*> StagedBucket::ToldOf(int device) {
  for (const std::unique_ptr<Told>& told : told_) {
    if (told->event.device() == device) return told.get();
  }
  auto told = std::make_unique<Told>();
  RABIT_ASSIGN_OR_RETURN(told->streams, devices_->StreamsOf(device));
  RABIT_ASSIGN_OR_RETURN(told->event, MakeEvent(driver_, device));
  return told_.emplace_back(std::move(told)).get();
}

Status StagedBucket::RecordAll(DeviceStream Devices::Streams::* stream) {
  for (const std::unique_ptr<Told>& told : told_) {
    if (!told->is_awaited) continue;
    RABIT_RETURN_IF_ERROR(
        driver_->Record(told->event.device(), told->event.get(), (told->streams->*stream).get()));
  }
  return Status();
}

Status StagedBucket::Wait(Deadline deadline) {
  for (const std::unique_ptr<Told>& told : told_) {
    if (!told->is_awaited) continue;
    const Status status = WaitOver(*driver_, told->event.device(), told->event.get(), deadline);
    if (status.code() == Code::kTimedOut) return status;
    told->is_awaited = false;
    if (failed_.ok()) failed_ = status;
  }
  return failed_;
}

Status StagedBucket::CopyIn(Devices& devices, const BucketJob& job, int rank, Deadline deadline) {
  const Status before = Wait(deadline);
  if (before.code() == Code::kTimedOut) return before;
  failed_ = Status();  // of the bucket before, which has told it
  devices_ = &devices;
  RABIT_ASSIGN_OR_RETURN(driver_, devices.driver());
  const size_t bytes = Place(job);
  Status status;
  for (const BucketItem& item : job.items) {
    const PendingRequest* const pending = OnDevice(item);
    if (pending == nullptr) continue;
    status = Reserve(pending->request.device.index, bytes);
    if (status.ok() && ReadsInput(job, *pending, rank)) status = CopyInput(item, job);
    if (!status.ok()) break;
  }
  // Also of copies before one that was refused: their memory is in use.
  const Status recorded = RecordAll(&Devices::Streams::to_host);
  return status.ok() ? recorded : status;
}

Status StagedBucket::CopyInput(const BucketItem& item, const BucketJob& job) {
  const TensorView& input = item.request()->request.input;
  RABIT_ASSIGN_OR_RETURN(Told* const told, ToldOf(input.device.index));
  told->is_awaited = true;
  RABIT_RETURN_IF_ERROR(AwaitReady(*item.request(), told->streams->to_host));
  std::byte* image = InputOf(item, job);
  for (const Chunk& chunk : InputChunks(item, job)) {
    RABIT_RETURN_IF_ERROR(
        driver_->CopyToHost(input.device.index, told->streams->to_host.get(), image,
                            static_cast<const std::byte*>(input.data) + chunk.offset, chunk.bytes));
    image += chunk.bytes;
  }
  return Status();
}

Status StagedBucket::AwaitReady(const PendingRequest& pending, const DeviceStream& stream) {
  if (!pending.request.is_early) return Status();
  return driver_->Await(stream.device(), stream.get(), pending.request.ready->get());
}

Status StagedBucket::CopyOut(const BucketJob& job, int rank) {
  const bool has_result = job.bucket.kind != Kind::kReduce || job.bucket.root == rank;
  if (!has_result) return Status();
  Status status;
  for (const BucketItem& item : job.items) {
    if (OnDevice(item) == nullptr) continue;
    const TensorView& output = item.request()->output().view;
    const bool is_on_device = output.data != nullptr && output.device.kind != DeviceKind::kCpu;
    if (is_on_device) status = CopyOutput(item, job);
    if (!status.ok()) break;
  }
  const Status recorded = RecordAll(&Devices::Streams::to_device);
  return status.ok() ? recorded : status;
}

Status StagedBucket::CopyOutput(const BucketItem& item, const BucketJob& job) {
  const TensorView& output = item.request()->output().view;
  RABIT_ASSIGN_OR_RETURN(Told* const told, ToldOf(output.device.index));
  told->is_awaited = true;
  // Of a tensor that is not read here nothing has waited for what writes it before.
  RABIT_RETURN_IF_ERROR(AwaitReady(*item.request(), told->streams->to_device));
  const std::byte* image = OutputOf(item, job);
  for (const Chunk& chunk : OutputChunks(item, job, output.bytes())) {
    RABIT_RETURN_IF_ERROR(driver_->CopyToDevice(output.device.index, told->streams->to_device.get(),
                                                static_cast<std::byte*>(output.data) + chunk.offset,
                                                image, chunk.bytes));
    image += chunk.bytes;
  }
  return Status();
}

const DeviceEvent* StagedBucket::ResultOf(const BucketItem& item) const {
  const TensorView& output = item.request()->output().view;
  if (output.data == nullptr || output.device.kind == DeviceKind::kCpu) return nullptr;
  for (const std::unique_ptr<Told>& told : told_) {
    if (told->event.device() == output.device.index && told->is_awaited) return &told->event;
  }
  return nullptr;
}

std::byte* StagedBucket::InputOf(const BucketItem& item, const BucketJob& job) const {
  return At(images_[IndexOf(item, job)].input);
}

std::byte* StagedBucket::OutputOf(const BucketItem& item, const BucketJob& job) const {
  return At(images_[IndexOf(item, job)].output);
}

}  // namespace rabit

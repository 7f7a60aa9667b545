// What a bucket does with memory, whether that is the host's or a device's.
#include <cstring>

#include "arithmetic/reduce.h"
#include "engine/averaging.h"
#include "engine/bucket_run.h"

namespace rabit {

Result<Bytes> BucketRun::Packed(size_t bytes) {
  return is_on_device_ ? on_device_.Scratch(bytes) : buffer_.Get(FusionBuffer::kPacked, bytes);
}

// A rank that has joined contributes what changes nothing.
Status BucketRun::Bring(const BucketItem& item, const std::byte* from, std::byte* to,
                        int64_t count) {
  const bool has_input = item.request() != nullptr;
  if (is_on_device_ && has_input) {
    return on_device_.Copy(to, from, static_cast<size_t>(count) * SizeOf(bucket_.dtype));
  }
  if (is_on_device_) {
    return on_device_.FillIdentity(WireOp(bucket_.op), bucket_.dtype, to, count);
  }
  if (has_input) {
    CopyScaled(bucket_.dtype, from, to, count, bucket_.prescale);
  } else {
    FillIdentity(WireOp(bucket_.op), bucket_.dtype, to, count);
  }
  return Status();
}

Status BucketRun::Carry(std::byte* to, const std::byte* from, size_t bytes) {
  if (is_on_device_) return on_device_.Copy(to, from, bytes);
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
  return Status();
}

bool BucketRun::CanReachOutput(const BucketItem& item) const {
  if (!is_on_device_) return true;
  const TensorView& given = item.request()->request.output;  // what the engine makes is the host's
  return given.data != nullptr && given.device.kind != DeviceKind::kCpu;
}

Status BucketRun::HandOver(const BucketItem& item, std::byte* to, const std::byte* from,
                           size_t bytes) {
  return CanReachOutput(item) ? Carry(to, from, bytes) : on_device_.CopyToHost(to, from, bytes);
}

Result<Bytes> BucketRun::ResultBytes(const BucketItem& item) {
  if (CanReachOutput(item)) return OutputBytes(item);
  return on_device_.Scratch(item.request()->output().view.bytes());
}

Status BucketRun::Deliver(const BucketItem& item, ConstBytes from) {
  if (item.request() == nullptr || CanReachOutput(item)) return Status();
  auto* const to = static_cast<std::byte*>(item.request()->output().view.data);
  return on_device_.CopyToHost(to, from.data(), from.size());
}

}  // namespace rabit

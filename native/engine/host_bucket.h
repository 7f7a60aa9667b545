// HostBucket: a bucket whose tensors lie in the memory of the host.
#pragma once

#include "engine/bucket_memory.h"
#include "engine/fusion_buffer.h"

namespace rabit {

// Exchanges read and write the tensors themselves wherever the algorithm allows it.
class HostBucket final : public BucketMemory {
 public:
  explicit HostBucket(FusionBuffer& buffer) : buffer_(buffer) {}

  Status Prepare(const LaneServices& services, const BucketJob& job, Deadline deadline) override;
  Bytes Slice(const BucketItem& item, Side side, int64_t part) const override {
    return InTensor(item, *job_, side, part);
  }
  Result<bool> KeepInput(const BucketItem& item) override;
  Result<Bytes> Scratch(size_t slot, size_t bytes) override { return buffer_.Get(slot, bytes); }
  Status Bring(const BucketItem& item, const std::byte* from, std::byte* to, int64_t count,
               double factor) override;
  Status HandOver(const BucketItem& item, std::byte* to, ConstBytes from) override;

 private:
  FusionBuffer& buffer_;
  const BucketJob* job_ = nullptr;
};

}  // namespace rabit

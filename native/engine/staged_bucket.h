// StagedBucket: a bucket whose tensors lie in the memory of a device and are exchanged in the
// host's.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "base/device/pinned_pool.h"
#include "base/device/stream_tail.h"
#include "engine/bucket_memory.h"
#include "engine/fusion_buffer.h"
#include "engine/host_bucket.h"

namespace rabit {

// A partition travels in three steps, each of which runs beside those of other buckets: the device
// copies it into an image in pinned memory, the ranks exchange it there, the device copies the
// result back.  If there is no room for the images in pinned memory when the bucket's turn has
// come, they are in ordinary memory, and copies pass through a piece of pinned memory and are
// waited for.
class StagedBucket final : public BucketMemory {
 public:
  // `host`: for what exchanges do in the memory of the host beside the images.
  explicit StagedBucket(HostBucket& host) : host_(host) {}

  Status Prepare(const LaneServices& services, const BucketJob& job, Deadline deadline) override;
  Status Begin() override;
  Status Launch(const Status& exchanged) override;
  // A copy that has failed is told each time.
  Status Wait(Deadline until) override;

  bool has_images() const override { return true; }
  const DeviceEvent* ResultOf(const BucketItem& item) const override;

  Bytes Slice(const BucketItem& item, Side side, int64_t part) const override;
  // An image has the slices of its own partition only, one behind the other.
  bool joins_partitions() const override { return false; }
  Result<bool> KeepInput(const BucketItem&) override { return true; }  // images lie apart
  Result<Bytes> Scratch(size_t slot, size_t bytes) override { return host_.Scratch(slot, bytes); }
  Status Bring(const BucketItem& item, const std::byte* from, std::byte* to, int64_t count,
               double factor) override {
    return host_.Bring(item, from, to, count, factor);
  }
  Status HandOver(const BucketItem& item, std::byte* to, ConstBytes from) override {
    return host_.HandOver(item, to, from);
  }

 private:
  struct Image {
    size_t input = 0;   // where it begins in the memory
    size_t output = 0;  // the same place if the result replaces the input
  };

  std::byte* ImageOf(const BucketItem& item, Side side) const;
  size_t Place();  // returns how many bytes all images take together
  bool IsCopied(const BucketItem& item, Side side) const;
  // Copies between tensors and images; returns when the device has been told, or, through a piece,
  // when it is done.
  Status CopyAll(Side side);
  Status CopyChunk(const DeviceStream& stream, Side side, std::byte* tensor, std::byte* image,
                   size_t bytes);

  HostBucket& host_;
  const LaneServices* services_ = nullptr;
  const BucketJob* job_ = nullptr;
  Deadline deadline_;
  std::shared_ptr<DeviceDriver> driver_;
  std::vector<Image> images_;  // by item
  size_t bytes_ = 0;           // of all images
  bool is_copied_in_ = false;
  std::byte* memory_ = nullptr;      // of the images
  PinnedBlock pinned_;               // the same memory, or the piece through which copies pass
  std::map<int, StreamTail> tails_;  // of the copies, by device
  Status failed_;                    // the first copy of this bucket that did
};

}  // namespace rabit

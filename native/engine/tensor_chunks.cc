#include "engine/tensor_chunks.h"

#include "engine/overlap.h"
#include "engine/part_slices.h"

namespace rabit {
namespace {

// Only kinds without even parts come here; they are never cut, so no other lane prepares the output
// while it is read.
size_t WholeBytes(const PendingRequest& pending, Side side) {
  if (side == Side::kInput) return pending.request.input.bytes();
  const TensorView& prepared = pending.output().view;
  return prepared.data != nullptr ? prepared.bytes() : pending.request.output.bytes();
}

}  // namespace

int64_t Chunks(const Bucket& bucket, Side side) {
  const Side whole = bucket.kind == Kind::kAllgather ? Side::kOutput : Side::kInput;
  return bucket.even_parts > 0 && side == whole ? bucket.even_parts : 1;
}

Chunk ChunkOf(const BucketItem& item, const BucketJob& job, Side side, int64_t part) {
  const Bucket& bucket = job.bucket;
  const size_t element_bytes = SizeOf(bucket.dtype);
  const auto range = [&](int64_t begin, int64_t count) {
    return Chunk{static_cast<size_t>(begin + item.partition.offset) * element_bytes,
                 static_cast<size_t>(count) * element_bytes};
  };
  if (IsInPlace(bucket.kind)) return range(0, item.partition.count);
  if (bucket.even_parts == 0) return {0, WholeBytes(*item.request(), side)};
  const EvenElements elements = ElementsOf(item);
  const bool is_slice = Chunks(bucket, side) > 1 || bucket.even_parts == 1;
  // The other side has this rank's part alone, from its begin on.
  const int64_t of = is_slice ? part : job.group->my_index;
  return range(is_slice ? elements.Begin(part) : 0, SliceCount(item.partition, elements.Of(of)));
}

Bytes InTensor(const BucketItem& item, const BucketJob& job, Side side, int64_t part) {
  const PendingRequest& pending = *item.request();
  auto* const begin = side == Side::kInput ? const_cast<std::byte*>(pending.input())
                                           : static_cast<std::byte*>(pending.output().view.data);
  const Chunk chunk = ChunkOf(item, job, side, part);
  return {begin + chunk.offset, chunk.bytes};
}

bool OverwritesInput(const BucketItem& item, const BucketJob& job) {
  const TensorView& input = item.request()->request.input;
  const TensorView& output = item.request()->output().view;
  const auto* const read = static_cast<const std::byte*>(input.data);
  const auto* const written = static_cast<const std::byte*>(output.data);
  const auto own = static_cast<size_t>(ElementsOf(item).Begin(job.group->my_index));
  if (written == read + own * SizeOf(job.bucket.dtype)) return false;
  return Overlap({read, input.bytes()}, {written, output.bytes()});
}

}  // namespace rabit

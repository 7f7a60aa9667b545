#include "engine/tensor_chunks.h"

#include "engine/part_slices.h"

namespace rabit {
namespace {

// The partition's range of one tensor, or of this rank's part of it.
Chunk RangeOf(const BucketItem& item, int64_t count, DType dtype) {
  const size_t element_bytes = SizeOf(dtype);
  return {static_cast<size_t>(item.partition.offset) * element_bytes,
          static_cast<size_t>(count) * element_bytes};
}

// The partition's range of every part.
std::vector<Chunk> SlicesOf(const BucketItem& item, const BucketJob& job) {
  const EvenElements elements = ElementsOf(item);
  const size_t element_bytes = SizeOf(job.bucket.dtype);
  std::vector<Chunk> slices;
  for (int64_t part = 0; part < job.bucket.even_parts; ++part) {
    const int64_t count = SliceCount(item.partition, elements.Of(part));
    slices.push_back(
        {static_cast<size_t>(elements.Begin(part) + item.partition.offset) * element_bytes,
         static_cast<size_t>(count) * element_bytes});
  }
  return slices;
}

Chunk OwnSlice(const BucketItem& item, const BucketJob& job) {
  const int64_t mine = ElementsOf(item).Of(job.group->my_index);
  return RangeOf(item, SliceCount(item.partition, mine), job.bucket.dtype);
}

}  // namespace

std::vector<Chunk> InputChunks(const BucketItem& item, const BucketJob& job) {
  const Bucket& bucket = job.bucket;
  if (IsInPlace(bucket.kind)) return {RangeOf(item, item.partition.count, bucket.dtype)};
  if (bucket.even_parts == 0) return {{0, item.request()->request.input.bytes()}};
  if (bucket.kind == Kind::kAllgather) return {OwnSlice(item, job)};
  return SlicesOf(item, job);
}

std::vector<Chunk> OutputChunks(const BucketItem& item, const BucketJob& job, size_t output_bytes) {
  const Bucket& bucket = job.bucket;
  if (IsInPlace(bucket.kind)) return {RangeOf(item, item.partition.count, bucket.dtype)};
  if (bucket.even_parts == 0) return {{0, output_bytes}};
  if (bucket.kind == Kind::kAllgather) return SlicesOf(item, job);
  return {OwnSlice(item, job)};
}

size_t TotalBytes(const std::vector<Chunk>& chunks) {
  size_t bytes = 0;
  for (const Chunk& chunk : chunks) bytes += chunk.bytes;
  return bytes;
}

}  // namespace rabit

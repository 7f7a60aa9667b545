// TensorChunks: which bytes of its tensors a partition reads and writes.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/bucket_job.h"

namespace rabit {

// Bytes of a tensor from an offset on.
struct Chunk {
  size_t offset = 0;
  size_t bytes = 0;
};

// In the order in which an image has them, one behind the other.
std::vector<Chunk> InputChunks(const BucketItem& item, const BucketJob& job);
// Of an output that is `output_bytes` long.
std::vector<Chunk> OutputChunks(const BucketItem& item, const BucketJob& job, size_t output_bytes);

size_t TotalBytes(const std::vector<Chunk>& chunks);

// The result takes the input's place, element by element.
inline bool IsInPlace(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kReduce || kind == Kind::kBroadcast;
}

}  // namespace rabit

// TensorChunks: which bytes of its tensors a partition reads and writes.
#pragma once

#include <cstddef>

#include "base/bytes.h"
#include "engine/bucket_job.h"

namespace rabit {

enum class Side { kInput, kOutput };

// Bytes of a tensor from an offset on.
struct Chunk {
  size_t offset = 0;
  size_t bytes = 0;
};

// How many a partition has.  It is one, the partition's range or the whole tensor, but for kinds
// with even parts on that side where they have the whole tensor: there it is a slice of each part.
int64_t Chunks(const Bucket& bucket, Side side);
// Chunk `part` of an item with a request, and where it lies in the tensor.  An output is prepared,
// or is as the caller gave it.
Chunk ChunkOf(const BucketItem& item, const BucketJob& job, Side side, int64_t part);
// Of an input exchanges only read it.
Bytes InTensor(const BucketItem& item, const BucketJob& job, Side side, int64_t part);

// Whether the output of a reduce-scatter lies over a part of the input that other parts are reduced
// from.  This rank's own part of the input nobody else reads: it may be the output.
bool OverwritesInput(const BucketItem& item, const BucketJob& job);

// The result takes the input's place, element by element.
inline bool IsInPlace(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kReduce || kind == Kind::kBroadcast;
}

}  // namespace rabit

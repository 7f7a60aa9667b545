// BucketWork: what a bucket does between its memory and its exchange; one function for each shape.
#pragma once

#include "base/group.h"
#include "codec/codec.h"
#include "engine/bucket_exchange.h"
#include "engine/bucket_job.h"
#include "engine/bucket_memory.h"

namespace rabit {

// It lives as long as its bucket: what follows upon a pending exchange refers to it.
struct BucketWork {
  const BucketJob& job;
  const int rank;
  BucketMemory& memory;
  BucketExchange& exchange;
  bool is_in_place = false;  // nothing was packed

  const Bucket& bucket() const { return job.bucket; }
  const Group& group() const { return *job.group; }
  size_t element_bytes() const { return SizeOf(job.bucket.dtype); }
  bool is_root() const { return job.bucket.root == rank; }
};

// Each blocks until its last exchange has begun, and what follows upon that is in its Then.

// reduction_run.cc: allreduces and reduces, which can be cut and fused.
Status RunReduction(BucketWork& work);
// codec_run.cc: the same, travelling compressed.
Status RunCodec(BucketWork& work, CodecSet& codecs);
// parts_run.cc: kinds whose ranks hold even parts, which can be cut and fused as well.
Status RunParts(BucketWork& work);
// vector_run.cc: kinds whose ranks hold different parts; one tensor at a time.
Status RunEach(BucketWork& work);

// One reduction of `buffer`, whose type a codec may have changed.  `left`: what is to be done to
// the result; afterwards, what still is.
Status ExchangeReduction(BucketWork& work, const TensorView& buffer, Epilogue& left);
// Prepares the output of an item with a request that is as large as its input.
Result<std::byte*> OutputLikeInput(BucketWork& work, const BucketItem& item);

}  // namespace rabit

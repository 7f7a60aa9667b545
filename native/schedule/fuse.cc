#include "schedule/fuse.h"

#include <algorithm>

namespace rabit {

bool CanFuse(const ScheduledTensor& a, const ScheduledTensor& b) {
  return IsDivisible(a.kind) && a.kind == b.kind && a.dtype == b.dtype && a.device == b.device &&
         a.op == b.op && a.prescale == b.prescale && a.postscale == b.postscale &&
         a.root == b.root && a.group == b.group && a.codec == b.codec && a.backend == b.backend &&
         a.joined == b.joined;
}

Bucket BucketFor(const ScheduledTensor& tensor, uint64_t id, const ScheduleLimits& limits) {
  Bucket bucket;
  bucket.id = id;
  bucket.lane = static_cast<int32_t>(id % static_cast<uint64_t>(std::max(limits.lanes, 1)));
  bucket.kind = tensor.kind;
  bucket.dtype = tensor.dtype;
  bucket.device = tensor.device;
  bucket.op = tensor.op;
  bucket.prescale = tensor.prescale;
  bucket.postscale = tensor.postscale;
  bucket.root = tensor.root;
  bucket.group = tensor.group;
  bucket.codec = tensor.codec;
  bucket.backend = tensor.backend;
  bucket.joined = tensor.joined;
  return bucket;
}

int64_t FillLimit(const ScheduleLimits& limits) {
  if (limits.credit_bytes > 0) return std::min(limits.fusion_bytes, limits.credit_bytes);
  return limits.fusion_bytes;
}

}  // namespace rabit

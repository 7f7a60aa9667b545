#include "engine/host_bucket.h"

#include <cstring>

#include "arithmetic/reduce.h"
#include "engine/averaging.h"

namespace rabit {

Status HostBucket::Prepare(const LaneServices&, const BucketJob& job, Deadline) {
  job_ = &job;
  return Status();
}

// The copy is of the whole input, and made by the first partition: a later one, in another bucket,
// would read what an earlier one has written.
Result<bool> HostBucket::KeepInput(const BucketItem& item) {
  if (OverwritesInput(item, *job_)) RABIT_RETURN_IF_ERROR(item.request()->CopyInput());
  return true;
}

Status HostBucket::Bring(const BucketItem& item, const std::byte* from, std::byte* to,
                         int64_t count, double factor) {
  const Bucket& bucket = job_->bucket;
  if (item.request() != nullptr) {
    CopyScaled(bucket.dtype, from, to, count, factor);
  } else {
    FillIdentity(WireOp(bucket.op), bucket.dtype, to, count);
  }
  return Status();
}

// An exchange that wrote to the output itself has left nothing to copy; memcpy must not see that.
Status HostBucket::HandOver(const BucketItem&, std::byte* to, ConstBytes from) {
  if (to != from.data() && !from.empty()) std::memcpy(to, from.data(), from.size());
  return Status();
}

}  // namespace rabit

// LoadOf: what the exchange of a bucket carries.
#pragma once

#include <algorithm>

#include "base/kind.h"
#include "engine/bucket_job.h"

namespace rabit {

inline Load LoadOf(const BucketJob& job) {
  Load load;
  for (const BucketItem& item : job.items) {
    load.bytes += item.partition.count * static_cast<int64_t>(SizeOf(job.bucket.dtype));
    if (job.bucket.kind != Kind::kAllgather) continue;
    const std::vector<int64_t>& rows = item.tensor->ready->extents;
    load.has_empty_part |= std::find(rows.begin(), rows.end(), 0) != rows.end();
  }
  return load;
}

}  // namespace rabit

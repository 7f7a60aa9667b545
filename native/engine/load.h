// LoadOf: what the exchange of a bucket carries.
#pragma once

#include <algorithm>

#include "engine/part_slices.h"

namespace rabit {

inline Load LoadOf(const BucketJob& job) {
  Load load;
  int64_t smallest_part = 0;
  for (const BucketItem& item : job.items) {
    const auto element_bytes = static_cast<int64_t>(SizeOf(job.bucket.dtype));
    if (job.bucket.even_parts > 0) {
      const EvenElements elements = ElementsOf(item);
      const int64_t longer = elements.rows.rows % elements.rows.parts;
      const int64_t small = SliceCount(item.partition, elements.Of(elements.rows.parts - 1));
      const int64_t large = SliceCount(item.partition, elements.Of(0));
      load.bytes += (small * elements.rows.parts + (large - small) * longer) * element_bytes;
      smallest_part += small;
      continue;
    }
    load.bytes += item.partition.count * element_bytes;
    if (job.bucket.kind != Kind::kAllgather) continue;
    const std::vector<int64_t>& rows = item.tensor->ready->extents;
    load.has_empty_part |= std::find(rows.begin(), rows.end(), 0) != rows.end();
  }
  const bool is_even_gather = job.bucket.kind == Kind::kAllgather && job.bucket.even_parts > 0;
  load.has_empty_part |= is_even_gather && smallest_part == 0;
  return load;
}

}  // namespace rabit

// Segments: which items of a bucket are exchanged together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/bucket_job.h"

namespace rabit {

// Consecutive items of a bucket.
struct Segment {
  std::span<const BucketItem> items;
  int64_t count = 0;           // elements
  bool is_contiguous = false;  // one tensor, without gaps: it needs no copy
};

// Joining saves a latency for each tensor and costs two copies of it.  From this size on the copies
// cost more, on every network whose latency is below what memory copies in that time (a memory copy
// of 1 MiB, cold, there and back, takes some 200 us).
inline constexpr int64_t kAloneBytesMin = 1 << 20;

struct SegmentLimits {
  int64_t alone_bytes_min = kAloneBytesMin;
  int64_t joined_bytes_max = std::numeric_limits<int64_t>::max();
};

// In order; together they are all items.  Partitions of one tensor that lie side by side become one
// again; what then has at least `alone_bytes_min` stays alone, the rest is joined, up to
// `joined_bytes_max`.  Depends on nothing but what is agreed, so that every rank makes the same
// exchanges.
std::vector<Segment> SegmentsOf(std::span<const BucketItem> items, int64_t element_bytes,
                                const SegmentLimits& limits);

}  // namespace rabit

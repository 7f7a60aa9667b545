#include "engine/segments.h"

namespace rabit {
namespace {

bool Continues(const BucketItem& before, const BucketItem& next) {
  return before.tensor == next.tensor &&
         before.partition.offset + before.partition.count == next.partition.offset;
}

// The longest run of one tensor from the start of `items`.
Segment FirstRun(std::span<const BucketItem> items) {
  size_t length = 1;
  int64_t count = items[0].partition.count;
  while (length < items.size() && Continues(items[length - 1], items[length])) {
    count += items[length++].partition.count;
  }
  return {items.first(length), count, true};
}

}  // namespace

std::vector<Segment> SegmentsOf(std::span<const BucketItem> items, int64_t element_bytes,
                                const SegmentLimits& limits) {
  std::vector<Segment> segments;
  bool can_join = false;  // the last segment takes small tensors
  for (size_t at = 0; at < items.size();) {
    const Segment run = FirstRun(items.subspan(at));
    const int64_t bytes = run.count * element_bytes;
    // Every rank must come to the same answer here, from partitions and sizes alone.
    const bool stays_alone = bytes >= limits.alone_bytes_min;
    const bool fits =
        can_join && segments.back().count * element_bytes <= limits.joined_bytes_max - bytes;
    if (fits && !stays_alone) {
      Segment& last = segments.back();
      last.items = {last.items.data(), last.items.size() + run.items.size()};
      last.count += run.count;
      last.is_contiguous = false;
    } else {
      segments.push_back(run);
    }
    can_join = !stays_alone;
    at += run.items.size();
  }
  return segments;
}

}  // namespace rabit

#include "engine/part_slices.h"

namespace rabit {

std::vector<int64_t> PartCounts(std::span<const BucketItem> items) {
  std::vector<int64_t> counts;
  for (const BucketItem& item : items) {
    const EvenElements elements = ElementsOf(item);
    counts.resize(static_cast<size_t>(elements.rows.parts));
    for (size_t part = 0; part < counts.size(); ++part)
      counts[part] += SliceCount(item.partition, elements.Of(static_cast<int64_t>(part)));
  }
  return counts;
}

}  // namespace rabit

// PartSlices: where the even parts of the tensors of a bucket lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/even_rows.h"
#include "base/kind.h"
#include "engine/bucket_job.h"

namespace rabit {

// Elements of a tensor that is shared evenly.
struct EvenElements {
  EvenRows rows;
  int64_t row_count = 1;  // elements of a row

  int64_t Begin(int64_t part) const { return rows.Begin(part) * row_count; }
  int64_t Of(int64_t part) const { return rows.Of(part) * row_count; }
};

inline EvenElements ElementsOf(const BucketItem& item) {
  const Signature& signature = item.tensor->ready->signature;
  EvenElements elements{{signature.shape[0], signature.even_parts}, 1};
  for (size_t i = 1; i < signature.shape.size(); ++i) elements.row_count *= signature.shape[i];
  return elements;
}

// Elements of a part that a partition covers: the same range of every part, as far as it has one.
inline int64_t SliceCount(const Partition& partition, int64_t part_count) {
  return std::clamp<int64_t>(part_count - partition.offset, 0, partition.count);
}

// Elements of each part that the items cover together.
std::vector<int64_t> PartCounts(std::span<const BucketItem> items);

}  // namespace rabit

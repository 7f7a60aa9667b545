#include "schedule/partition.h"

#include <algorithm>

namespace rabit {
namespace {

constexpr int64_t kNominalBytes = 1 << 20;

int64_t BytesPerElement(const ScheduledTensor& tensor) {
  return std::max(tensor.even_parts, 1) * static_cast<int64_t>(SizeOf(tensor.dtype));
}

// Elements of every partition but the last.
int64_t StepOf(const ScheduledTensor& tensor, const ScheduleLimits& limits) {
  if (limits.partition_bytes <= 0) return tensor.count;
  const int64_t multiple = std::max<int64_t>(tensor.cut_multiple, 1);
  // A codec's block may not be cut, or a rank could not decode its part alone.
  const int64_t whole = limits.partition_bytes / BytesPerElement(tensor) / multiple * multiple;
  return std::min(tensor.count, std::max(whole, multiple));
}

}  // namespace

int64_t LargestPartitionBytes(const ScheduledTensor& tensor, const ScheduleLimits& limits) {
  if (!tensor.has_equal_counts()) return kNominalBytes;
  const int64_t count = tensor.is_divisible() ? StepOf(tensor, limits) : tensor.count;
  return count * BytesPerElement(tensor);
}

void AppendPartitions(const std::shared_ptr<const ScheduledTensor>& shared,
                      const ScheduleLimits& limits, uint64_t& next_sequence,
                      std::vector<QueuedPartition>& to) {
  const ScheduledTensor& tensor = *shared;
  if (!tensor.is_divisible()) {
    to.push_back({shared,
                  {tensor.id, 0, tensor.count, true},
                  LargestPartitionBytes(tensor, limits),
                  next_sequence++,
                  tensor.priority});
    return;
  }
  const int64_t element_bytes = BytesPerElement(tensor);
  const int64_t step = StepOf(tensor, limits);
  int64_t offset = 0;
  // At least one partition, also of an empty tensor: its handle is finished by its last one.
  do {
    const int64_t count = std::min(step, tensor.count - offset);
    const bool is_last = offset + count == tensor.count;
    to.push_back({shared,
                  {tensor.id, offset, count, is_last},
                  count * element_bytes,
                  next_sequence++,
                  tensor.priority});
    offset += count;
  } while (offset < tensor.count);
}

}  // namespace rabit

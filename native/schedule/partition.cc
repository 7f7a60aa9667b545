#include "schedule/partition.h"

#include <algorithm>

namespace rabit {
namespace {

constexpr int64_t kNominalBytes = 1 << 20;

void AppendOne(const std::shared_ptr<const ScheduledTensor>& shared, const ScheduleLimits& limits,
               uint64_t& next_sequence, std::vector<QueuedPartition>& to) {
  const ScheduledTensor& tensor = *shared;
  const int64_t copies = std::max(tensor.even_parts, 1);
  const int64_t element_bytes = copies * static_cast<int64_t>(SizeOf(tensor.dtype));
  if (!tensor.is_divisible()) {
    const int64_t bytes = tensor.has_equal_counts() ? tensor.count * element_bytes : kNominalBytes;
    to.push_back(
        {shared, {tensor.id, 0, tensor.count, true}, bytes, next_sequence++, tensor.priority});
    return;
  }
  int64_t step = tensor.count;
  if (limits.partition_bytes > 0) {
    const int64_t multiple = std::max<int64_t>(tensor.cut_multiple, 1);
    const int64_t whole = limits.partition_bytes / element_bytes / multiple * multiple;
    step = std::min(step, std::max(whole, multiple));
  }
  int64_t offset = 0;
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

}  // namespace

void AppendPartitions(const ScheduledTensors& ready, const ScheduleLimits& limits,
                      uint64_t& next_sequence, std::vector<QueuedPartition>& to) {
  to.reserve(to.size() + ready.size());
  for (size_t i = 0; i < ready.size(); ++i) AppendOne(ready.Share(i), limits, next_sequence, to);
}

}  // namespace rabit

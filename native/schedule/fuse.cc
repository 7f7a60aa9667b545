#include "schedule/fuse.h"

#include <algorithm>

namespace rabit {

bool CanFuse(const ScheduledTensor& a, const ScheduledTensor& b) {
  const Work& work = a;
  return a.is_divisible() && work == b && a.joined == b.joined;
}

int64_t FillLimit(const ScheduleLimits& limits) {
  if (limits.credit_bytes > 0) return std::min(limits.fusion_bytes, limits.credit_bytes);
  return limits.fusion_bytes;
}

}  // namespace rabit

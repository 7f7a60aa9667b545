#include "engine/averaging.h"

#include <cstring>
#include <utility>

#include "arithmetic/reduce.h"

namespace rabit {

LaneContext Finishing(const Backend& backend, LaneContext lane, Epilogue& left) {
  // Taken away from the caller, or it would be done twice.
  if (backend.applies_epilogues()) lane.epilogue = std::exchange(left, {});
  return lane;
}

void CopyScaled(DType dtype, const std::byte* from, std::byte* to, int64_t count, double factor) {
  if (count == 0) return;
  if (factor != 1.0) {
    Scale(dtype, from, to, count, factor);
  } else if (from != to) {
    std::memcpy(to, from, static_cast<size_t>(count) * SizeOf(dtype));
  }
}

}  // namespace rabit

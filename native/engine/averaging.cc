#include "engine/averaging.h"

#include <bit>
#include <cstring>
#include <utility>

#include "arithmetic/reduce.h"

namespace rabit {

Epilogue EpilogueOf(ReduceOp op, DType dtype, int size, double postscale) {
  if (op != ReduceOp::kAverage || size == 1) return {1, postscale};
  // The reciprocal of a power of two is exact, and so is multiplying floats by it.
  const bool is_exact =
      std::has_single_bit(static_cast<unsigned>(size)) && IsFloat(dtype) && postscale == 1.0;
  return is_exact ? Epilogue{1, 1.0 / size} : Epilogue{size, postscale};
}

Operation StartAllreduce(Backend& backend, LaneContext lane, const TensorView& in_out, ReduceOp op,
                         Epilogue& left) {
  if (backend.applies_epilogues()) lane.epilogue = std::exchange(left, {});
  return backend.Allreduce(lane, in_out, op);
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

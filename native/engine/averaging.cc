#include "engine/averaging.h"

#include <cstring>

#include "arithmetic/reduce.h"

namespace rabit {

void CopyScaled(DType dtype, const std::byte* from, std::byte* to, int64_t count, double factor) {
  if (count == 0) return;
  if (factor != 1.0) {
    Scale(dtype, from, to, count, factor);
  } else if (from != to) {
    std::memcpy(to, from, static_cast<size_t>(count) * SizeOf(dtype));
  }
}

void FinishReduction(ReduceOp op, DType dtype, std::byte* data, int64_t count, int size,
                     double postscale) {
  if (count == 0) return;
  if (MustDivide(op, dtype, size, postscale)) Divide(dtype, data, count, size);
  const double factor = PostFactor(op, dtype, size, postscale);
  if (factor != 1.0) Scale(dtype, data, data, count, factor);
}

}  // namespace rabit

// What an average leaves to do around the sum that backends compute.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace rabit {

inline ReduceOp WireOp(ReduceOp op) { return op == ReduceOp::kAverage ? ReduceOp::kSum : op; }

// Whether an average over `size` ranks has to be divided: what a multiplication would not give
// exactly.  The reciprocal of a power of two is exact, and so is multiplying floats by it.
inline bool MustDivide(ReduceOp op, DType dtype, int size, double postscale) {
  if (op != ReduceOp::kAverage || size == 1) return false;
  const bool is_exact =
      std::has_single_bit(static_cast<unsigned>(size)) && IsFloat(dtype) && postscale == 1.0;
  return !is_exact;
}

// What remains to be multiplied after the reduction, and after the division if there is one.
inline double PostFactor(ReduceOp op, DType dtype, int size, double postscale) {
  if (op != ReduceOp::kAverage || MustDivide(op, dtype, size, postscale)) return postscale;
  return postscale / size;
}

// Copies `count` elements, multiplying on the way.  `from` may be `to`.
void CopyScaled(DType dtype, const std::byte* from, std::byte* to, int64_t count, double factor);

// What an operation over `size` ranks leaves to do after its reduction: the division of an average
// and the caller's factor.
void FinishReduction(ReduceOp op, DType dtype, std::byte* data, int64_t count, int size,
                     double postscale);

}  // namespace rabit

// What an average leaves to do around the sum that backends compute.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/epilogue.h"

namespace rabit {

inline ReduceOp WireOp(ReduceOp op) { return op == ReduceOp::kAverage ? ReduceOp::kSum : op; }

// What an operation over `size` ranks leaves to do after its reduction.
Epilogue EpilogueOf(ReduceOp op, DType dtype, int size, double postscale);

// Copies `count` elements, multiplying on the way.  `from` may be `to`.
void CopyScaled(DType dtype, const std::byte* from, std::byte* to, int64_t count, double factor);

}  // namespace rabit

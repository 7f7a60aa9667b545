// What an average leaves to do around the sum that backends compute.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "base/dtype.h"
#include "base/epilogue.h"

namespace rabit {

inline ReduceOp WireOp(ReduceOp op) { return op == ReduceOp::kAverage ? ReduceOp::kSum : op; }

// What an operation over `size` ranks leaves to do after its reduction.
Epilogue EpilogueOf(ReduceOp op, DType dtype, int size, double postscale);

// Starts an allreduce of `backend` that does `left` as well, where the backend can; then nothing is
// left.
Operation StartAllreduce(Backend& backend, LaneContext lane, const TensorView& in_out, ReduceOp op,
                         Epilogue& left);

// Copies `count` elements, multiplying on the way.  `from` may be `to`.
void CopyScaled(DType dtype, const std::byte* from, std::byte* to, int64_t count, double factor);

}  // namespace rabit

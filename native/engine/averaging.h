// What an average leaves to do around the sum that backends compute.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "base/dtype.h"
#include "base/epilogue.h"

namespace rabit {

inline ReduceOp WireOp(ReduceOp op) { return op == ReduceOp::kAverage ? ReduceOp::kSum : op; }

// The context of a reduction by `backend` that does `left` as well, where the backend can; then
// nothing is left.
LaneContext Finishing(const Backend& backend, LaneContext lane, Epilogue& left);

// Copies `count` elements, multiplying on the way.  `from` may be `to`.
void CopyScaled(DType dtype, const std::byte* from, std::byte* to, int64_t count, double factor);

}  // namespace rabit

// Reduce to one rank, and reduce-scatter.
#pragma once

#include <span>

#include "base/dtype.h"
#include "base/epilogue.h"
#include "base/status.h"
#include "collective/call.h"

namespace rabit {

// Afterwards `buffer` of the root is the reduction in rank order, finished (arithmetic/reduce.h);
// elsewhere it is as it was or overwritten.  Blocks.
Status ReduceToRoot(const CollectiveCall& call, const TensorView& buffer, ReduceOp op, int root,
                    const Epilogue& epilogue = {});

// `in` has the parts in rank order, part i of part_counts[i] elements; `out` gets this rank's part,
// reduced in rank order and finished.  `out` may be this rank's part of `in`.  Blocks.
Status ReduceScatter(const CollectiveCall& call, const TensorView& in, const TensorView& out,
                     std::span<const int64_t> part_counts, ReduceOp op,
                     const Epilogue& epilogue = {});

// The same where many senders at one receiver are to be avoided; summed up in the order of the
// ring.
Status ReduceScatterAroundRing(const CollectiveCall& call, const TensorView& in,
                               const TensorView& out, std::span<const int64_t> part_counts,
                               ReduceOp op, const Epilogue& epilogue = {});

}  // namespace rabit

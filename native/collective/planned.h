// Collectives along the trees of a plan: any shape, several roots, each with its part of the data.
#pragma once

#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/epilogue.h"
#include "base/status.h"
#include "base/tree_plan.h"
#include "collective/call.h"

namespace rabit {

// Under which a route names them.
inline constexpr std::string_view kPlanAlgorithm = "plan";

// All block.  The plan is of call.size() ranks and has trees for the kind and the root.  A rank
// adds its own contribution first and then those of its children, in the order of their ranks: the
// sum of an element depends on the plan, the size of the buffer and the element's place in it.
// Sums of 16-bit floats, and means of narrow integers, are on their way in WideOf(dtype) and rounded
// once, at the root.
Status PlannedAllreduce(const CollectiveCall& call, const TreePlan& plan, const TensorView& buffer,
                        ReduceOp op, const Epilogue& epilogue);
// See ReduceToRoot.
Status PlannedReduce(const CollectiveCall& call, const TreePlan& plan, const TensorView& buffer,
                     ReduceOp op, int root, const Epilogue& epilogue);
Status PlannedBroadcast(const CollectiveCall& call, const TreePlan& plan, Bytes buffer, int root);
// See Allgather and ReduceScatter.
Status PlannedAllgather(const CollectiveCall& call, const TreePlan& plan, ConstBytes mine,
                        Bytes all, std::span<const int64_t> part_bytes);
Status PlannedReduceScatter(const CollectiveCall& call, const TreePlan& plan, const TensorView& in,
                            const TensorView& out, std::span<const int64_t> part_counts,
                            ReduceOp op, const Epilogue& epilogue);

}  // namespace rabit

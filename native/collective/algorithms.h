// The allreduce algorithms behind the table in allreduce.cc.  Each works for every size >= 2,
// count >= 1, dtype and op, blocks, and leaves the same bits on every rank.
#pragma once

#include "base/status.h"
#include "collective/allreduce.h"
#include "collective/call.h"

namespace rabit {

Status RunDirect(const CollectiveCall& call, const AllreduceArgs& args);
Status RunGatherAll(const CollectiveCall& call, const AllreduceArgs& args);
Status RunRing(const CollectiveCall& call, const AllreduceArgs& args);
Status RunRecursiveDoubling(const CollectiveCall& call, const AllreduceArgs& args);
Status RunHalvingDoubling(const CollectiveCall& call, const AllreduceArgs& args);
Status RunTree(const CollectiveCall& call, const AllreduceArgs& args);
Status RunDoubleTree(const CollectiveCall& call, const AllreduceArgs& args);
Status RunHierarchical(const CollectiveCall& call, const AllreduceArgs& args);

}  // namespace rabit

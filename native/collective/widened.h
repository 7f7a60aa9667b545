// Averages in narrow types, by algorithms that add up in several steps: these run in a wide type.
#pragma once

#include "base/dtype.h"
#include "base/epilogue.h"
#include "base/result.h"
#include "base/status.h"
#include "collective/allreduce.h"
#include "collective/call.h"

namespace rabit {

// A sum of narrow values may leave their type where their mean does not, and a part of it would be
// rounded at every step.  So the steps carry WideOf the type, which costs that many more bytes, and
// the result is rounded once, like that of algorithms that add up at one place.

// `values` in memory that lasts until the next one of this lane; `epilogue`: what is left of the
// sum, and then of the wide one.
Result<TensorView> Widen(const TensorView& values, const CollectiveCall& call, Epilogue& epilogue);

// Runs the algorithm, on wide values if the epilogue makes that necessary (EndsWide).
using AllreduceRun = Status (*)(const CollectiveCall& call, const AllreduceArgs& args);
Status RunWidened(AllreduceRun run, const CollectiveCall& call, const AllreduceArgs& args);

}  // namespace rabit

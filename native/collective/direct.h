// Reduction by owners: every rank owns a part, receives it from all others and reduces it.
#pragma once

#include <span>

#include "base/dtype.h"
#include "base/epilogue.h"
#include "base/status.h"
#include "collective/call.h"

namespace rabit {

enum class ResultGoesTo { kOwner, kRoot, kAll };

// Part i, `part_offsets[i]` to `part_offsets[i + 1]` in elements, is reduced by rank i in rank
// order and finished, in one pass with one rounding.  Every rank passes the same offsets.
struct DirectReduction {
  const std::byte* in = nullptr;  // all parts of this rank's contribution
  std::byte* out = nullptr;       // this rank's own part, reduced; may be that part of `in`
  // kRoot, kAll: where the reduced parts of the others go, laid out like `in`; may be `in`.  Used
  // on ranks that get the result.
  std::byte* all = nullptr;
  std::span<const int64_t> part_offsets;  // size + 1 of them
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  ResultGoesTo result_goes_to = ResultGoesTo::kOwner;
  int root = 0;
  Epilogue epilogue = {};  // done by the owner
};

// Blocks.  Pipelined: a chunk is received, the one before reduced, the one before that sent on.
// Uses tags +0 and +1.
Status ReduceByOwners(const CollectiveCall& call, const DirectReduction& reduction);

}  // namespace rabit

#include "route/mpi_rows.h"

#include <limits>

#include "base/kind.h"
#include "base/measured.h"

namespace rabit {
namespace {

constexpr int64_t kCountMax = std::numeric_limits<int>::max();

}  // namespace

bool MpiRows::RunsInLibrary(const Work& work, Load load, const Group& group,
                            bool is_deterministic) const {
  if (collectives == MpiCollectives::kMessages) return false;
  if (!CanRunInLibrary(work, load, group, is_deterministic)) return false;
  if (collectives == MpiCollectives::kLibrary) return true;
  // No rank knows how much the others exchange, so size cannot decide.
  if (work.kind == Kind::kAlltoall) return false;
  return !TraitsOf(work.kind).reduces || load.bytes <= kMpiReduceBytesMax;
}

bool MpiRows::CanRunInLibrary(const Work& work, Load load, const Group& group,
                              bool is_deterministic) const {
  if (TraitsOf(work.kind).is_pair || group.size() == 1) return false;
  if (work.kind == Kind::kAlltoall) return true;
  if (load.bytes > kCountMax) return false;
  // In Intel MPI 2021.18 an MPI_Iallgatherv of some 100 kB to which a rank brings nothing never
  // ends.
  if (work.kind == Kind::kAllgather) return !load.has_empty_part;
  return !TraitsOf(work.kind).reduces || (!is_deterministic && CanReduce(work));
}

bool MpiRows::CanReduce(const Work& work) const {
  // The engine divides the sum.
  const ReduceOp op = work.op == ReduceOp::kAverage ? ReduceOp::kSum : work.op;
  if (!dtypes[static_cast<size_t>(work.dtype)] || !ops[static_cast<size_t>(op)]) return false;
  // The library would add up what is to be divided in the type, in which the sum may not fit.
  const bool is_finished = work.op == ReduceOp::kAverage || work.postscale != 1.0;
  if (is_finished && WideOf(work.dtype) != work.dtype) return false;
  // MPI has no 16-bit floats and no sum of bool, and does not say what a NaN does to a minimum.
  const bool is_order = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const bool is_unpromised = work.dtype == DType::kFloat16 || work.dtype == DType::kBfloat16 ||
                             work.dtype == DType::kBool || (IsFloat(work.dtype) && is_order);
  return !is_unpromised;
}

}  // namespace rabit

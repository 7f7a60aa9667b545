// Recursive doubling: in step i rank r exchanges everything with rank r xor 2^i (Thakur,
// Rabenseifner and Gropp, 2005).
#include "arithmetic/reduce.h"
#include "collective/algorithms.h"
#include "collective/chunks.h"
#include "collective/pairwise.h"

namespace rabit {
namespace {

constexpr Tag kDoublingFoldTag = 32;
constexpr Tag kDoublingUnfoldTag = 33;

}  // namespace

Status RunRecursiveDoubling(const CollectiveCall& call, const AllreduceArgs& args) {
  const Folding folding(call.rank(), call.size());
  const DType dtype = args.buffer.dtype;
  const Bytes all = Elements(args.buffer).In({0, args.buffer.count});
  if (!folding.takes_part()) {
    RABIT_RETURN_IF_ERROR(ExchangeAndReduce(call, folding.partner(), call.tag + kDoublingFoldTag,
                                            all, {}, dtype, args.op, Order::kMineFirst));
    return Exchange(call, folding.partner(), call.tag + kDoublingUnfoldTag, {}, all);
  }
  if (folding.partner() >= 0) {
    RABIT_RETURN_IF_ERROR(ExchangeAndReduce(call, folding.partner(), call.tag + kDoublingFoldTag,
                                            {}, all, dtype, args.op, Order::kTheirsFirst));
  }
  Tag step = 0;
  for (int distance = 1; distance < folding.power(); distance *= 2, ++step) {
    const int other = folding.index() ^ distance;
    // The lower block first on both sides: they must compute the same bits.
    const Order order = folding.index() < other ? Order::kMineFirst : Order::kTheirsFirst;
    RABIT_RETURN_IF_ERROR(ExchangeAndReduce(call, folding.RankOf(other), call.tag + step, all, all,
                                            dtype, args.op, order));
  }
  ApplyEpilogue(args.epilogue, dtype, all.data(), args.buffer.count);
  if (folding.partner() < 0) return Status();
  return Exchange(call, folding.partner(), call.tag + kDoublingUnfoldTag, all, {});
}

}  // namespace rabit

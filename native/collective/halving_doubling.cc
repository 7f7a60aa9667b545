// Recursive halving and doubling: partners exchange half of what they hold, then give back what
// they reduced (Rabenseifner, "Optimization of Collective Reduction Operations", 2004).
#include <utility>
#include <vector>

#include "arithmetic/reduce.h"
#include "collective/algorithms.h"
#include "collective/chunks.h"
#include "collective/cost.h"
#include "collective/pairwise.h"

namespace rabit {
namespace {

constexpr Tag kHalvingFoldTag = 64;
constexpr Tag kHalvingUnfoldTag = 65;
constexpr Tag kDoublingTag = 32;

// The part of `held` that this rank keeps, and the part of its partner.
std::pair<Range, Range> Halve(Range held, bool keeps_lower) {
  const Range lower = PartOf(held, 2, 0);
  const Range upper = PartOf(held, 2, 1);
  return keeps_lower ? std::pair(lower, upper) : std::pair(upper, lower);
}

Status HalveAndDouble(const CollectiveCall& call, const AllreduceArgs& args, const Folding& folding,
                      Range block) {
  struct Step {
    int peer;
    Range kept;
    Range given;
  };
  const Elements elements(args.buffer);
  std::vector<Step> steps;
  LateSends sends;
  Range held = block;
  for (int distance = folding.power() / 2; distance >= 1; distance /= 2) {
    const int other = folding.index() ^ distance;
    const bool is_lower = folding.index() < other;
    const auto [kept, given] = Halve(held, is_lower);
    const Tag tag = call.tag + steps.size();
    steps.push_back({folding.RankOf(other), kept, given});
    RABIT_RETURN_IF_ERROR(ExchangeAndReduce(
        call, steps.back().peer, tag, elements.In(given), elements.In(kept), args.buffer.dtype,
        args.op, is_lower ? Order::kMineFirst : Order::kTheirsFirst, &sends));
    held = kept;
  }
  ApplyEpilogue(args.epilogue, args.buffer.dtype, elements.At(held.begin), held.count());
  for (size_t i = steps.size(); i-- > 0;) {
    const Step& step = steps[i];
    RABIT_RETURN_IF_ERROR(Exchange(call, step.peer, call.tag + kDoublingTag + i,
                                   elements.In(step.kept), elements.In(step.given), &sends));
  }
  return sends.Wait(call.deadline);
}

}  // namespace

Status RunHalvingDoubling(const CollectiveCall& call, const AllreduceArgs& args) {
  const Folding folding(call.rank(), call.size());
  const DType dtype = args.buffer.dtype;
  const Bytes all = Elements(args.buffer).In({0, args.buffer.count});
  if (!folding.takes_part()) {
    RABIT_RETURN_IF_ERROR(ExchangeAndReduce(call, folding.partner(), call.tag + kHalvingFoldTag,
                                            all, {}, dtype, args.op, Order::kMineFirst));
    return Exchange(call, folding.partner(), call.tag + kHalvingUnfoldTag, {}, all);
  }
  if (folding.partner() >= 0) {
    RABIT_RETURN_IF_ERROR(ExchangeAndReduce(call, folding.partner(), call.tag + kHalvingFoldTag, {},
                                            all, dtype, args.op, Order::kTheirsFirst));
  }
  const Range whole{0, args.buffer.count};
  // Blocks follow each other under the same tags: the transport keeps their order.
  const int64_t block_count = kHalvingBlockBytes / static_cast<int64_t>(SizeOf(dtype));
  for (int64_t k = 0; k < ChunksIn(whole, block_count); ++k) {
    RABIT_RETURN_IF_ERROR(HalveAndDouble(call, args, folding, ChunkOf(whole, block_count, k)));
  }
  if (folding.partner() < 0) return Status();
  return Exchange(call, folding.partner(), call.tag + kHalvingUnfoldTag, all, {});
}

}  // namespace rabit

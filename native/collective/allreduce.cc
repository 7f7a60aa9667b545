#include "collective/allreduce.h"

#include "arithmetic/reduce.h"
#include "base/measured.h"
#include "collective/algorithms.h"
#include "collective/cost.h"

namespace rabit {
namespace {

// One rank already has the sum, and nothing is nothing everywhere.
template <Status (*Run)(const CollectiveCall&, const AllreduceArgs&)>
Status UnlessTrivial(const CollectiveCall& call, const AllreduceArgs& args) {
  const TensorView& buffer = args.buffer;
  if (call.size() > 1 && buffer.count > 0) return Run(call, args);
  ApplyEpilogue(args.epilogue, buffer.dtype, static_cast<std::byte*>(buffer.data), buffer.count);
  return Status();
}

// Of equally cheap algorithms the first is chosen.
constexpr AllreduceAlgorithm kAlgorithms[] = {
    {"direct", "every rank reduces its own part in rank order; 2 steps, bandwidth-optimal", true,
     &UnlessTrivial<RunDirect>, &DirectCostMicros},
    {"gather_all", "every rank receives everything; 1 step, for tiny buffers", true,
     &UnlessTrivial<RunGatherAll>, &GatherAllCostMicros},
    {"ring", "bandwidth-optimal; 2(n-1) steps between neighbours", false,
     &UnlessTrivial<RunRing>, &RingCostMicros},
    {"recursive_doubling", "latency-optimal for pairwise exchange; log2(n) steps", false,
     &UnlessTrivial<RunRecursiveDoubling>, &RecursiveDoublingCostMicros},
    {"halving_doubling", "bandwidth-optimal; 2 log2(n) steps", false,
     &UnlessTrivial<RunHalvingDoubling>, &HalvingDoublingCostMicros},
    {"tree", "pipelined binary tree, up and down", false, &UnlessTrivial<RunTree>,
     &TreeCostMicros},
    {"double_tree", "two complementary trees, half of the data each", false,
     &UnlessTrivial<RunDoubleTree>, &DoubleTreeCostMicros},
    {"hierarchical", "inside the hosts, across them, inside again", false,
     &UnlessTrivial<RunHierarchical>, &HierarchicalCostMicros, true},
};

}  // namespace

std::span<const AllreduceAlgorithm> AllreduceAlgorithms() { return kAlgorithms; }

const AllreduceAlgorithm* FindAllreduceAlgorithm(std::string_view name) {
  for (const AllreduceAlgorithm& algorithm : kAlgorithms) {
    if (algorithm.name == name) return &algorithm;
  }
  return nullptr;
}

bool WantsRing(int size, int64_t bytes) { return size > 2 && bytes >= kRingPartBytesMin * size; }

bool WantsRankOrder(DType dtype, ReduceOp op) {
  // Such types are rounded at each addition, so the order of the ranks is what makes the result
  // equal on all.
  const bool is_narrow = WideOf(dtype) != dtype;
  return is_narrow && (IsFloat(dtype) || op == ReduceOp::kAverage);
}

const AllreduceAlgorithm& ChooseAllreduceAlgorithm(const LinkModel& link, int size, int64_t bytes,
                                                   bool is_rank_ordered) {
  // Every rank computes this from the same numbers and finds the same row; a comparison of measured
  // times must not enter here.
  const AllreduceAlgorithm* best = &kAlgorithms[0];
  if (size < 2) return *best;
  for (const AllreduceAlgorithm& algorithm : kAlgorithms) {
    if (is_rank_ordered && !algorithm.is_rank_ordered) continue;
    if (algorithm.cost_us(link, size, bytes) < best->cost_us(link, size, bytes)) best = &algorithm;
  }
  return *best;
}

}  // namespace rabit

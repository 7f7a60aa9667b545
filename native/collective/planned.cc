// Pipelined trees that share the links by weight.  All trees have about the same number of chunks
// and advance together, chunk by chunk, so that each link carries the trees in the proportion of
// the plan at any time (Zhao et al., "ForestColl: Throughput-Optimal Collective Communications on
// Heterogeneous Network Fabrics", 2024).
#include "collective/planned.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "arithmetic/reduce.h"
#include "collective/allreduce.h"
#include "collective/chunks.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

constexpr int64_t kArriving = 8;  // chunks that may arrive from a neighbour ahead of their turn
constexpr int64_t kRising = 4;    // chunks on their way to the parent
constexpr int64_t kSinking = 8;   // chunks on their way to the children
// How much later than it could a rank waits for results.  Less has it wait for what is late by a
// little, while what it could send lies there.
constexpr int64_t kSlack = 2;
static_assert(kSinking > kRising, "a rank would wait for a child that waits for its parent");

// Messages below this cost more than they carry.
constexpr int64_t kMessageBytesMin = 8 << 10;
constexpr int64_t kMessageBytesMax = 256 << 10;
// Parts and chunks begin on cache lines.
constexpr int64_t kAlignedBytes = 64;

struct Neighbours {
  int parent = -1;
  std::vector<int> children;  // ascending
};

Neighbours NeighboursOf(const std::vector<int>& parents, int rank) {
  Neighbours found;
  if (parents.empty()) return found;
  found.parent = parents[static_cast<size_t>(rank)];
  for (size_t child = 0; child < parents.size(); ++child) {
    if (parents[child] == rank) found.children.push_back(static_cast<int>(child));
  }
  return found;
}

// How many chunks later a rank turns to a result than to its contribution: later than its parent,
// which would wait for it otherwise, and so late that the result is there.
int64_t LagOf(const PlannedTree& tree, int rank) {
  if (tree.up.empty() || tree.down.empty() || rank == tree.root) return 0;
  const int parent = tree.down[static_cast<size_t>(rank)];
  const int64_t way = HopsToRoot(tree.up, rank) + HopsToRoot(tree.down, rank) + kSlack;
  return std::max({LagOf(tree, parent) + 1, way, kRising});
}

// What one tree does to the memory of this rank.
struct TreeShare {
  const PlannedTree* tree;
  Range range;           // in elements of `in`
  int64_t chunk_count;   // elements
  const std::byte* in;   // this rank's contribution; of a tree without reduction unused
  std::byte* result;     // where the result goes, laid out like `in` from `result_begin` on
  int64_t result_begin;  // in elements
  bool sums_in_scratch;  // of ranks that are not the root: `result` is not theirs
};

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  Epilogue epilogue = {};
};

// Of which type sums are on their way: a sum of a narrow type is rounded once, at the root.
DType SumTypeOf(const PlannedTree& tree, const Reduction& reduction, DType dtype) {
  const bool ends_wide = WantsRankOrder(dtype, reduction.op) || EndsWide(dtype, reduction.epilogue);
  return !tree.up.empty() && ends_wide ? WideOf(dtype) : dtype;
}

class PlannedPass {
 public:
  PlannedPass(const CollectiveCall& call, DType dtype, const Reduction& reduction,
              const TreeShare& share, Tag tag)
      : call_(call),
        dtype_(dtype),
        sum_dtype_(SumTypeOf(*share.tree, reduction, dtype)),
        reduction_(reduction),
        share_(share),
        has_up_(!share.tree->up.empty()),
        has_down_(!share.tree->down.empty()),
        is_root_(call.rank() == share.tree->root),
        up_(NeighboursOf(share.tree->up, call.rank())),
        down_(NeighboursOf(share.tree->down, call.rank())),
        chunks_(share.range.empty() ? 0 : ChunksIn(share.range, share.chunk_count)),
        lag_(LagOf(*share.tree, call.rank())),
        up_tag_(tag),
        down_tag_(tag + 1),
        from_children_(static_cast<size_t>(kArriving) * up_.children.size()),
        to_parent_(static_cast<size_t>(kRising) + 1),
        from_parent_(static_cast<size_t>(kArriving + kRising + lag_) + 1),
        to_children_(static_cast<size_t>(kSinking + 1) * down_.children.size()) {}

  int64_t scratch_bytes() const {
    const auto arriving = static_cast<int64_t>(up_.children.size()) * kArriving;
    return (arriving + (SumsInScratch() ? kRising + 1 : 0)) * ChunkSumBytes();
  }
  void SetScratch(std::byte* scratch) { scratch_ = scratch; }
  int64_t iterations() const { return chunks_ + lag_; }

  void Start() {
    for (int64_t k = 0; k < kArriving; ++k) ExpectChildren(k);
    if (!has_up_) {
      for (int64_t k = 0; k < kArriving; ++k) ExpectResult(k);
    }
  }
  Status IterateUp(int64_t k) {
    if (!has_up_) return Status();
    RABIT_RETURN_IF_ERROR(ReduceUp(k));
    if (!Has(k - kRising) || is_root_) return Status();
    // The result lands where the contribution is sent from.
    RABIT_RETURN_IF_ERROR(to_parent_.Wait(ParentSlot(k - kRising), call_.deadline));
    ExpectResult(k - kRising);
    return Status();
  }
  Status IterateDown(int64_t k) { return has_down_ ? SendDown(k - lag_) : Status(); }
  Status Finish() {
    RABIT_RETURN_IF_ERROR(to_parent_.WaitAll(call_.deadline));
    return to_children_.WaitAll(call_.deadline);
  }

 private:
  bool Has(int64_t k) const { return k >= 0 && k < chunks_; }
  bool is_wide() const { return sum_dtype_ != dtype_; }
  bool SumsInScratch() const {
    return is_wide() || (share_.sums_in_scratch && !is_root_ && !up_.children.empty());
  }
  int64_t ChunkSumBytes() const {
    return share_.chunk_count * static_cast<int64_t>(SizeOf(sum_dtype_));
  }
  Range Chunk(int64_t k) const { return ChunkOf(share_.range, share_.chunk_count, k); }
  size_t BytesOf(int64_t k) const { return static_cast<size_t>(Chunk(k).count()) * SizeOf(dtype_); }
  size_t SumBytesOf(int64_t k) const {
    return static_cast<size_t>(Chunk(k).count()) * SizeOf(sum_dtype_);
  }
  int64_t OffsetOf(int64_t k) const {
    return Chunk(k).begin * static_cast<int64_t>(SizeOf(dtype_));
  }
  std::byte* ResultAt(int64_t k) const {
    return share_.result +
           (Chunk(k).begin - share_.result_begin) * static_cast<int64_t>(SizeOf(dtype_));
  }
  Bytes Result(int64_t k) const { return {ResultAt(k), BytesOf(k)}; }
  size_t ChildSlot(int64_t k, size_t child) const {
    return static_cast<size_t>(k % kArriving) * up_.children.size() + child;
  }
  static size_t ParentSlot(int64_t k) { return static_cast<size_t>(k % (kRising + 1)); }
  size_t ResultSlot(int64_t k) const {
    return static_cast<size_t>(k % (kArriving + kRising + lag_ + 1));
  }
  Bytes Arriving(int64_t k, size_t child) const {
    return {scratch_ + static_cast<int64_t>(ChildSlot(k, child)) * ChunkSumBytes(), SumBytesOf(k)};
  }
  std::byte* SumOf(int64_t k) const {
    if (!SumsInScratch()) return ResultAt(k);
    const auto before = static_cast<int64_t>(up_.children.size()) * kArriving;
    return scratch_ + (before + static_cast<int64_t>(ParentSlot(k))) * ChunkSumBytes();
  }

  void ExpectChildren(int64_t k);
  void ExpectResult(int64_t k);
  Status ReduceUp(int64_t k);
  Status SendDown(int64_t k);

  const CollectiveCall& call_;
  const DType dtype_, sum_dtype_;
  const Reduction reduction_;
  const TreeShare share_;
  const bool has_up_, has_down_, is_root_;
  const Neighbours up_, down_;
  const int64_t chunks_;
  const int64_t lag_;
  const Tag up_tag_, down_tag_;
  std::byte* scratch_ = nullptr;
  OperationSlots from_children_, to_parent_, from_parent_, to_children_;
};

void PlannedPass::ExpectChildren(int64_t k) {
  if (!Has(k)) return;
  for (size_t i = 0; i < up_.children.size(); ++i) {
    from_children_.Start(ChildSlot(k, i),
                         call_.transport.Recv(up_.children[i], up_tag_, Arriving(k, i)));
  }
}

void PlannedPass::ExpectResult(int64_t k) {
  if (!Has(k) || down_.parent < 0) return;
  from_parent_.Start(ResultSlot(k), call_.transport.Recv(down_.parent, down_tag_, Result(k)));
}

Status PlannedPass::ReduceUp(int64_t k) {
  if (!Has(k)) return Status();
  const Range chunk = Chunk(k);
  const std::byte* sum = share_.in + OffsetOf(k);
  if (is_wide()) {
    Convert(dtype_, sum, sum_dtype_, SumOf(k), chunk.count());
    sum = SumOf(k);
  }
  if (is_root_ || !up_.children.empty()) {
    std::vector<const std::byte*> inputs = {sum};
    for (size_t i = 0; i < up_.children.size(); ++i) {
      RABIT_RETURN_IF_ERROR(from_children_.Wait(ChildSlot(k, i), call_.deadline));
      inputs.push_back(Arriving(k, i).data());
    }
    std::byte* const into = SumOf(k);
    Reduce(reduction_.op, sum_dtype_, inputs, into, chunk.count(),
           is_root_ ? reduction_.epilogue : Epilogue());
    if (is_root_ && is_wide()) Convert(sum_dtype_, into, dtype_, ResultAt(k), chunk.count());
    ExpectChildren(k + kArriving);
    sum = into;
  }
  if (is_root_) return Status();
  to_parent_.Start(ParentSlot(k), call_.transport.Send(up_.parent, up_tag_, {sum, SumBytesOf(k)}));
  return Status();
}

Status PlannedPass::SendDown(int64_t k) {
  if (!Has(k)) return Status();
  if (down_.parent >= 0) {
    RABIT_RETURN_IF_ERROR(from_parent_.Wait(ResultSlot(k), call_.deadline));
    if (!has_up_) ExpectResult(k + kArriving);
  }
  const size_t children = down_.children.size();
  const size_t first = static_cast<size_t>(k % (kSinking + 1)) * children;
  RABIT_RETURN_IF_ERROR(to_children_.WaitRange(first, children, call_.deadline));
  for (size_t i = 0; i < children; ++i) {
    to_children_.Start(first + i, call_.transport.Send(down_.children[i], down_tag_, Result(k)));
  }
  return Status();
}

Status RunPasses(const CollectiveCall& call, DType dtype, const Reduction& reduction,
                 const std::vector<TreeShare>& shares) {
  std::vector<std::unique_ptr<PlannedPass>> passes;
  int64_t scratch_bytes = 0, iterations = 0;
  for (size_t t = 0; t < shares.size(); ++t) {
    passes.push_back(std::make_unique<PlannedPass>(call, dtype, reduction, shares[t],
                                                   call.tag + static_cast<Tag>(2 * t)));
    scratch_bytes += passes.back()->scratch_bytes();
    iterations = std::max(iterations, passes.back()->iterations());
  }
  RABIT_ASSIGN_OR_RETURN(std::byte * scratch, call.scratch.Get(static_cast<size_t>(scratch_bytes)));
  for (const auto& pass : passes) {
    pass->SetScratch(scratch);
    scratch += pass->scratch_bytes();
    pass->Start();
  }
  // kRising more, for the receives that follow the last contributions.
  for (int64_t k = 0; k < iterations + kRising; ++k) {
    for (const auto& pass : passes) RABIT_RETURN_IF_ERROR(pass->IterateUp(k));
    for (const auto& pass : passes) RABIT_RETURN_IF_ERROR(pass->IterateDown(k));
  }
  for (const auto& pass : passes) RABIT_RETURN_IF_ERROR(pass->Finish());
  return Status();
}

// Into how many steps a pipeline of `bytes` over `height` hops is cut: with chunks of c bytes it
// takes (bytes / c + height - 1) * (c + latency), which is least for the root below.  Of the latency
// each chunk bears a part alone, because kRising of them are under way at a time.
int64_t StepsFor(const TreePlan& plan, int64_t bytes, int64_t height, int64_t trees) {
  const double hops = static_cast<double>(std::max<int64_t>(height - 1, 1));
  const double latency = std::max(static_cast<double>(plan.pipeline_bytes()) / kRising, 1.0);
  const auto best = static_cast<int64_t>(std::sqrt(static_cast<double>(bytes) * latency / hops));
  const int64_t most = kMessageBytesMax * trees;
  const int64_t chunk = std::clamp(best, std::min(kMessageBytesMin * trees, most), most);
  return std::max<int64_t>((bytes + chunk - 1) / chunk, 1);
}

int64_t HeightOf(const PlannedTree& tree) {
  int64_t up = 0, down = 0;
  const auto size = static_cast<int>(std::max(tree.up.size(), tree.down.size()));
  for (int rank = 0; rank < size; ++rank) {
    up = std::max(up, HopsToRoot(tree.up, rank));
    down = std::max(down, HopsToRoot(tree.down, rank));
  }
  return up + down;
}

int64_t Aligned(int64_t count, DType dtype) {
  const int64_t step = std::max<int64_t>(kAlignedBytes / static_cast<int64_t>(SizeOf(dtype)), 1);
  return (count + step - 1) / step * step;
}

// Adds one share for each tree over `whole`, in proportion to the weights.
void AddShares(const std::vector<PlannedTree>& trees, DType dtype, Range whole, int64_t steps,
               TreeShare share, std::vector<TreeShare>& shares) {
  double sum = 0, before = 0;
  for (const PlannedTree& tree : trees) sum += static_cast<double>(tree.weight);
  int64_t begin = whole.begin;
  for (const PlannedTree& tree : trees) {
    before += static_cast<double>(tree.weight);
    const auto part = static_cast<int64_t>(static_cast<double>(whole.count()) * (before / sum));
    const bool is_last = &tree == &trees.back();
    const int64_t end = is_last ? whole.end
                                : std::min(whole.begin + Aligned(part, dtype), whole.end);
    share.tree = &tree;
    share.range = {begin, std::max(begin, end)};
    share.chunk_count =
        std::max<int64_t>(Aligned((share.range.count() + steps - 1) / steps, dtype), 1);
    begin = share.range.end;
    shares.push_back(share);
  }
}

std::vector<TreeShare> SharesOf(const TreePlan& plan, Kind kind, int root, const TensorView& buffer) {
  const std::vector<PlannedTree>& trees = plan.Trees(kind, root);
  int64_t height = 0;
  for (const PlannedTree& tree : trees) height = std::max(height, HeightOf(tree));
  auto* const data = static_cast<std::byte*>(buffer.data);
  const int64_t steps = StepsFor(plan, static_cast<int64_t>(buffer.bytes()), height,
                                 static_cast<int64_t>(trees.size()));
  std::vector<TreeShare> shares;
  AddShares(trees, buffer.dtype, {0, buffer.count}, steps, {nullptr, {}, 0, data, data, 0, false},
            shares);
  return shares;
}

// Steps of a collective whose parts have trees of their own.
int64_t StepsOfParts(const TreePlan& plan, Kind kind, int64_t bytes) {
  int64_t height = 0, trees = 0;
  for (int root = 0; root < plan.size(); ++root) {
    for (const PlannedTree& tree : plan.Trees(kind, root)) {
      height = std::max(height, HeightOf(tree));
      ++trees;
    }
  }
  return StepsFor(plan, bytes, height, trees);
}

}  // namespace

Status PlannedAllreduce(const CollectiveCall& call, const TreePlan& plan, const TensorView& buffer,
                        ReduceOp op, const Epilogue& epilogue) {
  if (buffer.count == 0) return Status();
  return RunPasses(call, buffer.dtype, {op, epilogue},
                   SharesOf(plan, Kind::kAllreduce, 0, buffer));
}

Status PlannedReduce(const CollectiveCall& call, const TreePlan& plan, const TensorView& buffer,
                     ReduceOp op, int root, const Epilogue& epilogue) {
  if (buffer.count == 0) return Status();
  return RunPasses(call, buffer.dtype, {op, epilogue},
                   SharesOf(plan, Kind::kReduce, root, buffer));
}

Status PlannedBroadcast(const CollectiveCall& call, const TreePlan& plan, Bytes buffer, int root) {
  if (buffer.empty()) return Status();
  const TensorView bytes{buffer.data(), static_cast<int64_t>(buffer.size()), DType::kUint8, {}};
  return RunPasses(call, DType::kUint8, {}, SharesOf(plan, Kind::kBroadcast, root, bytes));
}

Status PlannedAllgather(const CollectiveCall& call, const TreePlan& plan, ConstBytes mine,
                        Bytes all, std::span<const int64_t> part_bytes) {
  const int64_t steps = StepsOfParts(plan, Kind::kAllgather, static_cast<int64_t>(all.size()));
  std::vector<TreeShare> shares;
  Range part;
  for (int root = 0; root < call.size(); ++root) {
    part = {part.end, part.end + part_bytes[static_cast<size_t>(root)]};
    if (root == call.rank() && !mine.empty() && mine.data() != all.data() + part.begin) {
      std::memmove(all.data() + part.begin, mine.data(), mine.size());
    }
    AddShares(plan.Trees(Kind::kAllgather, root), DType::kUint8, part, steps,
              {nullptr, {}, 0, all.data(), all.data(), 0, false}, shares);
  }
  return RunPasses(call, DType::kUint8, {}, shares);
}

Status PlannedReduceScatter(const CollectiveCall& call, const TreePlan& plan, const TensorView& in,
                            const TensorView& out, std::span<const int64_t> part_counts,
                            ReduceOp op, const Epilogue& epilogue) {
  const int64_t steps =
      StepsOfParts(plan, Kind::kReduceScatter, static_cast<int64_t>(in.bytes()));
  std::vector<TreeShare> shares;
  Range part;
  for (int root = 0; root < call.size(); ++root) {
    part = {part.end, part.end + part_counts[static_cast<size_t>(root)]};
    AddShares(plan.Trees(Kind::kReduceScatter, root), in.dtype, part, steps,
              {nullptr, {}, 0, static_cast<const std::byte*>(in.data),
               static_cast<std::byte*>(out.data), part.begin, true},
              shares);
  }
  return RunPasses(call, in.dtype, {op, epilogue}, shares);
}

}  // namespace rabit

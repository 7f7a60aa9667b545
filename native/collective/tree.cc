// Pipelined binary trees: chunks are reduced up to the root and the results sent down again.
// "double_tree" gives each half of the data its own tree, and a rank that is interior in one is a
// leaf in the other (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", 2009).
#include <algorithm>
#include <memory>
#include <vector>

#include "arithmetic/reduce.h"
#include "collective/algorithms.h"
#include "collective/chunks.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

constexpr int64_t kTreeWindow = 4;  // chunks that may arrive from a child ahead of their turn
constexpr int kChildren = 2;

struct TreeNode {
  int parent = -1;
  int children[kChildren] = {-1, -1};
  int depth = 0;  // of the root: 0
};

TreeNode HeapTree(int rank, int size) {
  TreeNode node;
  node.parent = rank == 0 ? -1 : (rank - 1) / 2;
  for (int i = 0; i < kChildren; ++i) {
    const int child = 2 * rank + 1 + i;
    node.children[i] = child < size ? child : -1;
  }
  for (int r = rank; r > 0; r = (r - 1) / 2) ++node.depth;
  return node;
}

// The tree in which a rank's height is the number of its trailing zero bits: odd ranks are leaves.
int BitTreeParent(int rank, int size) {
  if (rank == 0) return -1;
  const int low = rank & -rank;
  const int parent = (rank ^ low) | (low << 1);
  return parent < size ? parent : rank ^ low;
}

TreeNode BitTree(int rank, int size) {
  TreeNode node;
  node.parent = BitTreeParent(rank, size);
  int found = 0;
  // A child differs in one bit or two, always by less than the lowest bit of its parent; of the
  // root any power of two.
  const int reach = rank == 0 ? size : rank & -rank;
  for (int distance = 1; distance < reach; distance *= 2) {
    for (int child : {rank - distance, rank + distance}) {
      if (child <= 0 || child >= size || BitTreeParent(child, size) != rank) continue;
      node.children[found++] = child;
    }
  }
  for (int r = rank; r != 0; r = BitTreeParent(r, size)) ++node.depth;
  return node;
}

// The bit tree with its ranks renamed so that odd ranks (all but one, for an odd size) are
// interior.
TreeNode MirroredBitTree(int rank, int size) {
  const auto rename = [size](int r) {
    if (r < 0) return -1;
    return size % 2 == 0 ? size - 1 - r : (r + 1) % size;
  };
  const int renamed = size % 2 == 0 ? size - 1 - rank : (rank - 1 + size) % size;
  TreeNode node = BitTree(renamed, size);
  node.parent = rename(node.parent);
  for (int& child : node.children) child = rename(child);
  return node;
}

// One tree over one range of the buffer.
class TreePass {
 public:
  TreePass(const CollectiveCall& call, const AllreduceArgs& args, TreeNode node, Range range,
           int64_t chunk_count, Tag tag, std::byte* scratch)
      : call_(call),
        args_(args),
        node_(node),
        range_(range),
        chunk_count_(chunk_count),
        chunks_(ChunksIn(range, chunk_count)),
        // Waiting for results later at greater depth lets the way up run ahead.  Greater depth must
        // never mean a smaller lag: a rank would wait for a parent that waits for it.
        down_lag_(node.depth == 0 ? 0 : 2 * node.depth + 1),
        up_tag_(tag),
        down_tag_(tag + 1),
        elements_(args.buffer),
        scratch_(scratch),
        from_children_(kTreeWindow * kChildren),
        to_parent_(1),
        from_parent_(static_cast<size_t>(chunks_)),
        to_children_(static_cast<size_t>(chunks_) * kChildren) {}

  static int64_t ScratchChunks() { return kTreeWindow * kChildren; }
  int64_t iterations() const { return chunks_ + down_lag_ + kFinishLag; }

  Status Iterate(int64_t k) {
    RABIT_RETURN_IF_ERROR(ExpectResult(k - 1));
    RABIT_RETURN_IF_ERROR(ReduceUp(k));
    return Status();
  }
  Status IterateDown(int64_t k) {
    RABIT_RETURN_IF_ERROR(SendDown(k - down_lag_));
    return Finish(k - down_lag_ - kFinishLag);
  }
  void Start() {
    for (int64_t k = 0; k < kTreeWindow; ++k) ExpectChildren(k);
  }

 private:
  static constexpr int64_t kFinishLag = 3;

  bool Has(int64_t k) const { return k >= 0 && k < chunks_; }
  Range Chunk(int64_t k) const { return ChunkOf(range_, chunk_count_, k); }
  size_t ChildSlot(int64_t k, int child) const {
    return static_cast<size_t>(k % kTreeWindow * kChildren + child);
  }
  std::byte* ScratchOf(int64_t k, int child) const {
    return scratch_ + static_cast<int64_t>(ChildSlot(k, child)) * elements_.BytesIn(chunk_count_);
  }

  void ExpectChildren(int64_t k);
  Status ReduceUp(int64_t k);
  Status ExpectResult(int64_t k);
  Status SendDown(int64_t k);
  Status Finish(int64_t k);

  const CollectiveCall& call_;
  const AllreduceArgs& args_;
  const TreeNode node_;
  const Range range_;
  const int64_t chunk_count_;
  const int64_t chunks_;
  const int64_t down_lag_;
  const Tag up_tag_;
  const Tag down_tag_;
  const Elements elements_;
  std::byte* const scratch_;
  OperationSlots from_children_, to_parent_, from_parent_, to_children_;
};

void TreePass::ExpectChildren(int64_t k) {
  if (!Has(k)) return;
  for (int i = 0; i < kChildren; ++i) {
    if (node_.children[i] < 0) continue;
    const Bytes into(ScratchOf(k, i), elements_.In(Chunk(k)).size());
    from_children_.Start(ChildSlot(k, i), call_.transport.Recv(node_.children[i], up_tag_, into));
  }
}

Status TreePass::ReduceUp(int64_t k) {
  if (!Has(k)) return Status();
  const Range chunk = Chunk(k);
  const std::byte* inputs[1 + kChildren] = {elements_.At(chunk.begin)};
  size_t input_count = 1;
  for (int i = 0; i < kChildren; ++i) {
    if (node_.children[i] < 0) continue;
    RABIT_RETURN_IF_ERROR(from_children_.Wait(ChildSlot(k, i), call_.deadline));
    inputs[input_count++] = ScratchOf(k, i);
  }
  // The own contribution comes first and then the children in ascending order, the same in every
  // run.
  Reduce(args_.op, args_.buffer.dtype, {inputs, input_count}, elements_.At(chunk.begin),
         chunk.count(), node_.parent < 0 ? args_.epilogue : Epilogue());
  // Only now: these receives use the scratch that was just reduced from.
  ExpectChildren(k + kTreeWindow);
  if (node_.parent >= 0) {
    to_parent_.Start(0, call_.transport.Send(node_.parent, up_tag_, elements_.In(chunk)));
  }
  return Status();
}

// The result lands where the contribution is sent from.
Status TreePass::ExpectResult(int64_t k) {
  if (!Has(k) || node_.parent < 0) return Status();
  RABIT_RETURN_IF_ERROR(to_parent_.Wait(0, call_.deadline));
  from_parent_.Start(static_cast<size_t>(k),
                     call_.transport.Recv(node_.parent, down_tag_, elements_.In(Chunk(k))));
  return Status();
}

Status TreePass::SendDown(int64_t k) {
  if (!Has(k)) return Status();
  RABIT_RETURN_IF_ERROR(from_parent_.Wait(static_cast<size_t>(k), call_.deadline));
  for (int i = 0; i < kChildren; ++i) {
    if (node_.children[i] < 0) continue;
    to_children_.Start(static_cast<size_t>(k * kChildren + i),
                       call_.transport.Send(node_.children[i], down_tag_, elements_.In(Chunk(k))));
  }
  return Status();
}

Status TreePass::Finish(int64_t k) {
  if (!Has(k)) return Status();
  return to_children_.WaitRange(static_cast<size_t>(k * kChildren), kChildren, call_.deadline);
}

// All trees advance together, chunk by chunk.
Status RunTrees(const CollectiveCall& call, const AllreduceArgs& args,
                const std::vector<TreeNode>& nodes) {
  const Elements elements(args.buffer);
  const Range whole{0, args.buffer.count};
  const int trees = static_cast<int>(nodes.size());
  const int64_t longest = PartOf(whole, trees, 0).count();
  const int64_t chunk_count = std::min(
      ChunkCountFor(call.transport.chunk_limits(), elements.BytesIn(longest), args.buffer.dtype),
      longest);
  const int64_t tree_bytes = TreePass::ScratchChunks() * elements.BytesIn(chunk_count);
  RABIT_ASSIGN_OR_RETURN(std::byte * scratch,
                         call.scratch.Get(static_cast<size_t>(trees * tree_bytes)));
  std::vector<std::unique_ptr<TreePass>> passes;
  int64_t iterations = 0;
  for (int t = 0; t < trees; ++t) {
    passes.push_back(std::make_unique<TreePass>(
        call, args, nodes[static_cast<size_t>(t)], PartOf(whole, trees, t), chunk_count,
        call.tag + static_cast<Tag>(2 * t), scratch + t * tree_bytes));
    iterations = std::max(iterations, passes.back()->iterations());
  }
  for (const auto& pass : passes) pass->Start();
  for (int64_t k = 0; k < iterations; ++k) {
    // First up in all trees and then down in all: a rank that waited for a result of one tree first
    // could be what the root of the other waits for.
    for (const auto& pass : passes) RABIT_RETURN_IF_ERROR(pass->Iterate(k));
    for (const auto& pass : passes) RABIT_RETURN_IF_ERROR(pass->IterateDown(k));
  }
  return Status();
}

}  // namespace

Status RunTree(const CollectiveCall& call, const AllreduceArgs& args) {
  return RunTrees(call, args, {HeapTree(call.rank(), call.size())});
}

Status RunDoubleTree(const CollectiveCall& call, const AllreduceArgs& args) {
  return RunTrees(call, args,
                  {BitTree(call.rank(), call.size()), MirroredBitTree(call.rank(), call.size())});
}

}  // namespace rabit

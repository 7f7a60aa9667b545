#include "collective/direct.h"

#include <cstring>
#include <vector>

#include "arithmetic/reduce.h"
#include "collective/algorithms.h"
#include "collective/chunks.h"
#include "collective/pair_reducer.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

// Iterations between the stages of one chunk.
constexpr int64_t kReduceLag = 2;
constexpr int64_t kFinishLag = 2;
constexpr int64_t kSlots = kReduceLag + kFinishLag + 1;
constexpr int64_t kScratchSlots = kReduceLag + 1;
constexpr int64_t kScratchBytesTarget = 8 << 20;

// The chunks of all parts in flight.  Every stage of chunk k waits only for stages of chunk k or
// earlier ones on the other ranks, so the ranks cannot wait for each other in a circle.
class DirectRun {
 public:
  DirectRun(const CollectiveCall& call, const DirectReduction& reduction)
      : call_(call),
        reduction_(reduction),
        rank_(call.rank()),
        size_(call.size()),
        in_(const_cast<std::byte*>(reduction.in), reduction.dtype),
        all_(reduction.all, reduction.dtype),
        reducer_(reduction.op, reduction.dtype,
                 rank_ == 0 ? Order::kMineFirst : Order::kTheirsFirst, reduction.epilogue),
        is_reduced_on_arrival_(size_ == 2 && reduction.out == in_.At(PartRange(rank_).begin)),
        contributions_in_(SlotCount()),
        contributions_out_(SlotCount()),
        results_in_(SlotCount()),
        results_out_(SlotCount()),
        inputs_(static_cast<size_t>(size_)) {}

  Status Run();

 private:
  size_t SlotCount() const { return static_cast<size_t>(kSlots * size_); }
  size_t SlotOf(int64_t k, int peer) const {
    return static_cast<size_t>(k % kSlots * size_ + peer);
  }
  size_t FirstSlot(int64_t k) const { return SlotOf(k, 0); }
  Range PartRange(int owner) const {
    const size_t i = static_cast<size_t>(owner);
    return {reduction_.part_offsets[i], reduction_.part_offsets[i + 1]};
  }
  Range Chunk(int owner, int64_t k) const { return ChunkOf(PartRange(owner), chunk_count_, k); }
  bool Receives(int rank) const {
    return reduction_.result_goes_to == ResultGoesTo::kAll ||
           (reduction_.result_goes_to == ResultGoesTo::kRoot && rank == reduction_.root);
  }
  // Whoever gets a contribution to a part sends that part of the result back.
  bool IsAnswered() const { return reduction_.result_goes_to == ResultGoesTo::kAll; }
  std::byte* ScratchOf(int64_t k, int peer) const {
    const int64_t slot = k % kScratchSlots * size_ + peer;
    return scratch_ + slot * in_.BytesIn(chunk_count_);
  }

  Status Prepare();
  void ExchangeContributions(int64_t k);
  Status ReduceAndPublish(int64_t k);
  void ReduceContributions(int64_t k, Range mine, std::byte* out);
  Status Finish(int64_t k);

  const CollectiveCall& call_;
  const DirectReduction& reduction_;
  const int rank_;
  const int size_;
  const Elements in_;
  const Elements all_;
  const PairReducer reducer_;
  // Of two ranks the one contribution that arrives goes straight into the result.
  const bool is_reduced_on_arrival_;
  int64_t chunk_count_ = 1;
  int64_t chunks_ = 0;
  std::byte* scratch_ = nullptr;
  OperationSlots contributions_in_, contributions_out_, results_in_, results_out_;
  std::vector<const std::byte*> inputs_;
};

Status DirectRun::Prepare() {
  int64_t longest = 0;
  for (int i = 0; i < size_; ++i) longest = std::max(longest, PartRange(i).count());
  const int64_t per_chunk = kScratchSlots * size_ * in_.BytesIn(1);
  chunk_count_ =
      std::min(ChunkCountFor(call_.transport.chunk_limits(), in_.BytesIn(longest), in_.dtype()),
               std::max<int64_t>(kScratchBytesTarget / per_chunk, 512));
  if (size_ == 2) {
    // Of two parts, one is reduced while the other one leaves.
    const int64_t bytes = CachedChunkBytes(call_.transport, 1 - rank_, in_.BytesIn(longest) / 2,
                                           in_.BytesIn(chunk_count_));
    chunk_count_ = bytes / in_.BytesIn(1);
  }
  chunk_count_ = std::max<int64_t>(std::min(chunk_count_, longest), 1);
  chunks_ = ChunksIn({0, longest}, chunk_count_);
  const int64_t scratch_chunks = std::min(kScratchSlots, chunks_) * size_;
  RABIT_ASSIGN_OR_RETURN(
      scratch_, call_.scratch.Get(static_cast<size_t>(scratch_chunks * in_.BytesIn(chunk_count_))));
  return Status();
}

Status DirectRun::Run() {
  RABIT_RETURN_IF_ERROR(Prepare());
  for (int64_t k = 0; k < chunks_ + kReduceLag + kFinishLag; ++k) {
    if (k < chunks_) ExchangeContributions(k);
    const int64_t reduced = k - kReduceLag;
    if (reduced >= 0 && reduced < chunks_) RABIT_RETURN_IF_ERROR(ReduceAndPublish(reduced));
    const int64_t finished = reduced - kFinishLag;
    if (finished >= 0) RABIT_RETURN_IF_ERROR(Finish(finished));
  }
  return Status();
}

void DirectRun::ExchangeContributions(int64_t k) {
  const Range mine = Chunk(rank_, k);
  for (int step = 1; step < size_ && !mine.empty(); ++step) {
    const int peer = Previous(rank_, step, size_);
    const Bytes into(ScratchOf(k, peer), static_cast<size_t>(in_.BytesIn(mine.count())));
    contributions_in_.Start(SlotOf(k, peer),
                            is_reduced_on_arrival_
                                ? call_.transport.RecvReduce(peer, call_.tag, in_.In(mine), into,
                                                             reducer_.AsPieceReducer())
                                : call_.transport.Recv(peer, call_.tag, into));
  }
  for (int step = 1; step < size_; ++step) {
    const int peer = Next(rank_, step, size_);
    const Range theirs = Chunk(peer, k);
    if (theirs.empty()) continue;
    const ConstBytes part = in_.In(theirs);
    contributions_out_.Start(SlotOf(k, peer),
                             IsAnswered() ? call_.transport.SendAnswered(peer, call_.tag, part)
                                          : call_.transport.Send(peer, call_.tag, part));
  }
}

Status DirectRun::ReduceAndPublish(int64_t k) {
  const size_t peers = static_cast<size_t>(size_);
  const Range mine = Chunk(rank_, k);
  RABIT_RETURN_IF_ERROR(contributions_in_.WaitRange(FirstSlot(k), peers, call_.deadline));
  if (!mine.empty()) {
    std::byte* out = reduction_.out + in_.BytesIn(mine.begin - PartRange(rank_).begin);
    if (!is_reduced_on_arrival_) ReduceContributions(k, mine, out);
    const ConstBytes result(out, static_cast<size_t>(in_.BytesIn(mine.count())));
    for (int step = 1; step < size_; ++step) {
      const int peer = Next(rank_, step, size_);
      if (!Receives(peer)) continue;
      results_out_.Start(SlotOf(k, peer), call_.transport.Send(peer, call_.tag + 1, result));
    }
  }
  if (!IsAnswered()) {
    // The results may land where this rank's contributions are still being sent from.
    RABIT_RETURN_IF_ERROR(contributions_out_.WaitRange(FirstSlot(k), peers, call_.deadline));
  }
  if (!Receives(rank_)) return Status();
  for (int step = 1; step < size_; ++step) {
    const int peer = Previous(rank_, step, size_);
    const Range theirs = Chunk(peer, k);
    if (theirs.empty()) continue;
    results_in_.Start(SlotOf(k, peer), call_.transport.Recv(peer, call_.tag + 1, all_.In(theirs)));
  }
  return Status();
}

void DirectRun::ReduceContributions(int64_t k, Range mine, std::byte* out) {
  for (int peer = 0; peer < size_; ++peer) {
    inputs_[static_cast<size_t>(peer)] = peer == rank_ ? in_.At(mine.begin) : ScratchOf(k, peer);
  }
  Reduce(reduction_.op, in_.dtype(), inputs_, out, mine.count(), reduction_.epilogue);
}

Status DirectRun::Finish(int64_t k) {
  const size_t peers = static_cast<size_t>(size_);
  RABIT_RETURN_IF_ERROR(results_in_.WaitRange(FirstSlot(k), peers, call_.deadline));
  RABIT_RETURN_IF_ERROR(contributions_out_.WaitRange(FirstSlot(k), peers, call_.deadline));
  return results_out_.WaitRange(FirstSlot(k), peers, call_.deadline);
}

}  // namespace

Status ReduceByOwners(const CollectiveCall& call, const DirectReduction& reduction) {
  return DirectRun(call, reduction).Run();
}

Status RunDirect(const CollectiveCall& call, const AllreduceArgs& args) {
  std::vector<int64_t> offsets;
  for (int i = 0; i < call.size(); ++i) {
    offsets.push_back(PartOf({0, args.buffer.count}, call.size(), i).begin);
  }
  offsets.push_back(args.buffer.count);
  const Elements elements(args.buffer);
  return ReduceByOwners(call, {.in = elements.At(0),
                               .out = elements.At(offsets[static_cast<size_t>(call.rank())]),
                               .all = elements.At(0),
                               .part_offsets = offsets,
                               .dtype = args.buffer.dtype,
                               .op = args.op,
                               .result_goes_to = ResultGoesTo::kAll,
                               .epilogue = args.epilogue});
}

}  // namespace rabit

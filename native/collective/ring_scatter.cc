// Ring reduce-scatter: the first half of a ring allreduce.  In step s part rank - 1 - s goes out
// and part rank - 2 - s comes in, is added to this rank's own, and goes on in step s + 1; the part
// that comes in last is this rank's.  Every link has one sender at every time.
#include <algorithm>
#include <cstring>
#include <vector>

#include "collective/chunks.h"
#include "collective/pair_reducer.h"
#include "collective/reduce_to.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

constexpr int64_t kScatterWindow = 4;  // messages in flight in each direction

// Message i: chunk i % chunks_ of step i / chunks_.  All parts have as many chunks as the longest;
// what lies behind the end of a shorter one is empty, and not sent.
class ScatterRun {
 public:
  ScatterRun(const CollectiveCall& call, const TensorView& in, std::byte* out,
             std::span<const int64_t> offsets, ReduceOp op, const Epilogue& epilogue)
      : call_(call),
        rank_(call.rank()),
        size_(call.size()),
        in_(in),
        out_(out),
        offsets_(offsets),
        reducer_(op, in.dtype, Order::kTheirsFirst),
        last_reducer_(op, in.dtype, Order::kTheirsFirst, epilogue),
        receives_(kScatterWindow),
        sends_(kScatterWindow) {}

  Status Run();

 private:
  Range RegionOf(int64_t message, int distance) const {
    const int step = static_cast<int>(message / chunks_);
    const auto part = static_cast<size_t>(Previous(rank_, (distance + step) % size_, size_));
    return ChunkOf({offsets_[part], offsets_[part + 1]}, chunk_count_, message % chunks_);
  }
  Range Outgoing(int64_t message) const { return RegionOf(message, 1); }
  Range Incoming(int64_t message) const { return RegionOf(message, 2); }
  bool IsLast(int64_t message) const { return message >= (size_ - 2) * chunks_; }
  // Where message `i` is summed up, and message i + chunks_ sent from.
  std::byte* SumOf(int64_t message) const {
    if (IsLast(message)) {
      const int64_t begin = Incoming(message).begin - offsets_[static_cast<size_t>(rank_)];
      return out_ + in_.BytesIn(begin);
    }
    return sums_ + message % (chunks_ + kScatterWindow) * in_.BytesIn(chunk_count_);
  }
  std::byte* ScratchOf(int64_t message) const {
    return scratch_ + message % kScatterWindow * in_.BytesIn(chunk_count_);
  }

  Status PostReceive(int64_t message);
  Status WaitSendsUpTo(int64_t end);
  void Send(int64_t message);

  const CollectiveCall& call_;
  const int rank_;
  const int size_;
  const Elements in_;
  std::byte* const out_;
  const std::span<const int64_t> offsets_;
  const PairReducer reducer_;
  const PairReducer last_reducer_;
  int64_t chunk_count_ = 1;
  int64_t chunks_ = 1;
  std::byte* sums_ = nullptr;
  std::byte* scratch_ = nullptr;
  int64_t sent_done_ = 0;  // sends waited for
  OperationSlots receives_, sends_;
};

Status ScatterRun::Run() {
  int64_t longest = 0;
  for (int i = 0; i < size_; ++i) {
    const auto part = static_cast<size_t>(i);
    longest = std::max(longest, offsets_[part + 1] - offsets_[part]);
  }
  if (longest == 0) return Status();
  chunk_count_ = std::min(
      ChunkCountFor(call_.transport.chunk_limits(), in_.BytesIn(longest), in_.dtype()), longest);
  chunks_ = ChunksIn({0, longest}, chunk_count_);
  const int64_t slots = chunks_ + 2 * kScatterWindow;
  RABIT_ASSIGN_OR_RETURN(sums_,
                         call_.scratch.Get(static_cast<size_t>(slots * in_.BytesIn(chunk_count_))));
  scratch_ = sums_ + (chunks_ + kScatterWindow) * in_.BytesIn(chunk_count_);

  const int64_t messages = (size_ - 1) * chunks_;
  // A message may not be expected before the one that carries its sum on can be sent.
  const int64_t ahead = std::min(kScatterWindow, chunks_);
  int64_t posted = 0;
  for (int64_t i = 0; i < messages; ++i) {
    for (; posted < std::min(messages, i + ahead); ++posted) {
      RABIT_RETURN_IF_ERROR(PostReceive(posted));
    }
    RABIT_RETURN_IF_ERROR(WaitSendsUpTo(i - kScatterWindow + 1));
    Send(i);
    RABIT_RETURN_IF_ERROR(receives_.Wait(static_cast<size_t>(i % kScatterWindow), call_.deadline));
  }
  return WaitSendsUpTo(messages);
}

Status ScatterRun::PostReceive(int64_t message) {
  const Range region = Incoming(message);
  if (region.empty()) return Status();
  // The memory of a sum is used again when the message that carried the old one has been sent.
  RABIT_RETURN_IF_ERROR(WaitSendsUpTo(message - kScatterWindow + 1));
  const Bytes own = in_.In(region);
  const Bytes sum(SumOf(message), own.size());
  if (sum.data() != own.data()) std::memcpy(sum.data(), own.data(), own.size());
  const PairReducer& reducer = IsLast(message) ? last_reducer_ : reducer_;
  receives_.Start(
      static_cast<size_t>(message % kScatterWindow),
      call_.transport.RecvReduce(Previous(rank_, 1, size_), call_.tag, sum,
                                 Bytes(ScratchOf(message), own.size()), reducer.AsPieceReducer()));
  return Status();
}

Status ScatterRun::WaitSendsUpTo(int64_t end) {
  for (; sent_done_ < end; ++sent_done_) {
    RABIT_RETURN_IF_ERROR(
        sends_.Wait(static_cast<size_t>(sent_done_ % kScatterWindow), call_.deadline));
  }
  return Status();
}

void ScatterRun::Send(int64_t message) {
  const Range region = Outgoing(message);
  if (region.empty()) return;
  const std::byte* from = message < chunks_ ? in_.At(region.begin) : SumOf(message - chunks_);
  const auto bytes = static_cast<size_t>(in_.BytesIn(region.count()));
  sends_.Start(static_cast<size_t>(message % kScatterWindow),
               call_.transport.Send(Next(rank_, 1, size_), call_.tag, ConstBytes(from, bytes)));
}

}  // namespace

Status ReduceScatterAroundRing(const CollectiveCall& call, const TensorView& in,
                               const TensorView& out, std::span<const int64_t> part_counts,
                               ReduceOp op, const Epilogue& epilogue) {
  if (call.size() == 1) return ReduceScatter(call, in, out, part_counts, op, epilogue);
  std::vector<int64_t> offsets = {0};
  for (int64_t count : part_counts) offsets.push_back(offsets.back() + count);
  return ScatterRun(call, in, static_cast<std::byte*>(out.data), offsets, op, epilogue).Run();
}

}  // namespace rabit

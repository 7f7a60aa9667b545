// Ring allreduce: a reduce-scatter and an allgather around a circle, n - 1 steps each (Patarasuk
// and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).  Every
// step is cut into chunks: a chunk goes on as soon as it is reduced.
#include <algorithm>
#include <vector>

#include "collective/algorithms.h"
#include "collective/chunks.h"
#include "collective/pair_reducer.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

constexpr int64_t kRingWindow = 4;  // messages in flight in each direction

// Message i of the run: chunk i % chunks_ of step i / chunks_.  All messages to the right carry one
// tag; the transport keeps their order.
class RingRun {
 public:
  RingRun(const CollectiveCall& call, const AllreduceArgs& args)
      : call_(call),
        args_(args),
        rank_(call.rank()),
        size_(call.size()),
        elements_(args.buffer),
        reducer_(args.op, args.buffer.dtype, Order::kTheirsFirst),
        last_reducer_(args.op, args.buffer.dtype, Order::kTheirsFirst, args.epilogue),
        receives_(kRingWindow),
        sends_(kRingWindow) {}

  Status Run();

 private:
  Range RegionOf(int64_t message, int first_part) const {
    const int step = static_cast<int>(message / chunks_);
    const int part = Previous(first_part, step % size_, size_);
    const Range whole = PartOf({0, args_.buffer.count}, size_, part);
    return ChunkOf(whole, chunk_count_, message % chunks_);
  }
  // In step s part rank - s goes out and part rank - s - 1 comes in; the allgather's steps simply
  // count on.
  Range Outgoing(int64_t message) const { return RegionOf(message, rank_); }
  Range Incoming(int64_t message) const { return RegionOf(message, Previous(rank_, 1, size_)); }
  bool IsReduced(int64_t message) const { return message < (size_ - 1) * chunks_; }
  const PairReducer& ReducerOf(int64_t message) const {
    return message < (size_ - 2) * chunks_ ? reducer_ : last_reducer_;
  }
  std::byte* ScratchOf(int64_t message) const {
    return scratch_ + message % kRingWindow * elements_.BytesIn(chunk_count_);
  }

  Status PostReceivesUpTo(int64_t end);
  Status WaitSendsUpTo(int64_t end);
  void Send(int64_t message);
  Status Receive(int64_t message);

  const CollectiveCall& call_;
  const AllreduceArgs& args_;
  const int rank_;
  const int size_;
  const Elements elements_;
  const PairReducer reducer_;
  const PairReducer last_reducer_;
  int64_t chunk_count_ = 1;
  int64_t chunks_ = 1;
  std::byte* scratch_ = nullptr;
  int64_t posted_ = 0;     // receives
  int64_t sent_done_ = 0;  // sends waited for
  OperationSlots receives_, sends_;
};

Status RingRun::Run() {
  const int64_t longest = PartOf({0, args_.buffer.count}, size_, 0).count();
  chunk_count_ = std::min(
      ChunkCountFor(call_.transport.chunk_limits(), elements_.BytesIn(longest), args_.buffer.dtype),
      longest);
  chunks_ = ChunksIn({0, longest}, chunk_count_);
  RABIT_ASSIGN_OR_RETURN(
      scratch_,
      call_.scratch.Get(static_cast<size_t>(kRingWindow * elements_.BytesIn(chunk_count_))));
  const int64_t messages = 2 * (size_ - 1) * chunks_;
  // A receive may not be posted before the send that it would overwrite has been started, see
  // PostReceivesUpTo.
  const int64_t ahead = std::min(kRingWindow, (size_ - 1) * chunks_);
  for (int64_t i = 0; i < messages; ++i) {
    RABIT_RETURN_IF_ERROR(PostReceivesUpTo(std::min(messages, i + ahead)));
    RABIT_RETURN_IF_ERROR(WaitSendsUpTo(i - kRingWindow + 1));
    Send(i);
    RABIT_RETURN_IF_ERROR(Receive(i));
  }
  return WaitSendsUpTo(messages);
}

Status RingRun::PostReceivesUpTo(int64_t end) {
  for (; posted_ < end; ++posted_) {
    const Range region = Incoming(posted_);
    if (region.empty()) continue;
    const size_t slot = static_cast<size_t>(posted_ % kRingWindow);
    const int left = Previous(rank_, 1, size_);
    const Bytes into = elements_.In(region);
    if (IsReduced(posted_)) {
      const Bytes scratch(ScratchOf(posted_), into.size());
      receives_.Start(slot, call_.transport.RecvReduce(left, call_.tag, into, scratch,
                                                       ReducerOf(posted_).AsPieceReducer()));
    } else {
      // The region left this rank exactly size - 1 steps earlier.
      RABIT_RETURN_IF_ERROR(WaitSendsUpTo(posted_ - (size_ - 1) * chunks_ + 1));
      receives_.Start(slot, call_.transport.Recv(left, call_.tag, into));
    }
  }
  return Status();
}

Status RingRun::WaitSendsUpTo(int64_t end) {
  for (; sent_done_ < end; ++sent_done_) {
    RABIT_RETURN_IF_ERROR(
        sends_.Wait(static_cast<size_t>(sent_done_ % kRingWindow), call_.deadline));
  }
  return Status();
}

void RingRun::Send(int64_t message) {
  const Range region = Outgoing(message);
  if (region.empty()) return;
  sends_.Start(static_cast<size_t>(message % kRingWindow),
               call_.transport.Send(Next(rank_, 1, size_), call_.tag, elements_.In(region)));
}

Status RingRun::Receive(int64_t message) {
  if (Incoming(message).empty()) return Status();
  return receives_.Wait(static_cast<size_t>(message % kRingWindow), call_.deadline);
}

}  // namespace

Status RunRing(const CollectiveCall& call, const AllreduceArgs& args) {
  return RingRun(call, args).Run();
}

}  // namespace rabit

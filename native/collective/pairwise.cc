#include "collective/pairwise.h"

#include <algorithm>
#include <array>
#include <utility>

#include "collective/chunks.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

constexpr int64_t kExchangeWindow = 3;  // chunks in flight in each direction

}  // namespace

Status ExchangeAndReduce(const CollectiveCall& call, int peer, Tag tag, ConstBytes outgoing,
                         Bytes into, DType dtype, ReduceOp op, Order order, LateSends* late) {
  const int64_t element_bytes = static_cast<int64_t>(SizeOf(dtype));
  const Range out_range{0, static_cast<int64_t>(outgoing.size()) / element_bytes};
  const Range in_range{0, static_cast<int64_t>(into.size()) / element_bytes};
  const auto longer = static_cast<int64_t>(std::max(outgoing.size(), into.size()));
  const int64_t chunk_bytes = std::max(kChunkBytesMax, call.transport.chunk_limits().bytes_min);
  const int64_t chunk = CachedChunkBytes(call.transport, peer, longer, chunk_bytes) / element_bytes;
  const int64_t scratch_chunk = std::min(chunk, in_range.count()) * element_bytes;
  RABIT_ASSIGN_OR_RETURN(std::byte * scratch,
                         call.scratch.Get(static_cast<size_t>(kExchangeWindow * scratch_chunk)));
  const Elements send_from(const_cast<std::byte*>(outgoing.data()), dtype);
  const Elements reduce_into(into.data(), dtype);
  const int64_t chunks_in = ChunksIn(in_range, chunk);
  const int64_t chunks_out = ChunksIn(out_range, chunk);
  const PairReducer reducer(op, dtype, order);
  OperationSlots receives(kExchangeWindow);
  OperationSlots sends(kExchangeWindow);
  // What is being sent must not change: where it is the same memory, the reduction waits until the
  // chunk has left.  A transport that copies takes it at once, and then it can be reduced on
  // arrival.
  const bool is_same_memory = outgoing.data() == into.data() && !into.empty();
  std::array<bool, kExchangeWindow> is_reduced_on_arrival{};
  const auto part = [&](int64_t k) { return send_from.In(ChunkOf(out_range, chunk, k)); };
  const auto send = [&](int64_t k) { return call.transport.Send(peer, tag, part(k)); };
  const auto start = [&](int64_t k) {
    const size_t slot = static_cast<size_t>(k % kExchangeWindow);
    bool has_left = !is_same_memory;
    if (k < chunks_out && is_same_memory) {
      Operation sent = send(k);
      has_left = sent.is_finished();
      sends.Start(slot, std::move(sent));
    }
    if (k < chunks_in) {
      const Bytes target = reduce_into.In(ChunkOf(in_range, chunk, k));
      const Bytes received(scratch + k % kExchangeWindow * scratch_chunk, target.size());
      is_reduced_on_arrival[slot] = has_left;
      receives.Start(slot, has_left ? call.transport.RecvReduce(peer, tag, target, received,
                                                                reducer.AsPieceReducer())
                                    : call.transport.Recv(peer, tag, received));
    }
    if (k >= chunks_out || is_same_memory) return;
    if (late == nullptr) return sends.Start(slot, send(k));
    late->Add(call.transport.SendAnswered(peer, tag, part(k)));
  };
  for (int64_t k = 0; k < kExchangeWindow; ++k) start(k);
  for (int64_t k = 0; k < std::max(chunks_in, chunks_out); ++k) {
    const size_t slot = static_cast<size_t>(k % kExchangeWindow);
    RABIT_RETURN_IF_ERROR(receives.Wait(slot, call.deadline));
    RABIT_RETURN_IF_ERROR(sends.Wait(slot, call.deadline));
    if (k < chunks_in && !is_reduced_on_arrival[slot]) {
      const Bytes target = reduce_into.In(ChunkOf(in_range, chunk, k));
      reducer.Run(target, {scratch + k % kExchangeWindow * scratch_chunk, target.size()});
    }
    start(k + kExchangeWindow);
  }
  return Status();
}

Status Exchange(const CollectiveCall& call, int peer, Tag tag, ConstBytes outgoing, Bytes into,
                LateSends* late) {
  const auto pieces_of = [&](int64_t bytes) {
    const int64_t each = CachedChunkBytes(call.transport, peer, bytes, bytes);
    return std::pair(std::max<int64_t>(each, 1), bytes == 0 ? 0 : (bytes - 1) / each + 1);
  };
  const Range in{0, static_cast<int64_t>(into.size())};
  const Range out{0, static_cast<int64_t>(outgoing.size())};
  const auto [in_each, in_pieces] = pieces_of(in.count());
  const auto [out_each, out_pieces] = pieces_of(out.count());
  OperationSlots operations(static_cast<size_t>(in_pieces + out_pieces));
  for (int64_t k = 0; k < in_pieces; ++k) {
    const Range piece = ChunkOf(in, in_each, k);
    const Bytes target =
        into.subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.count()));
    operations.Start(static_cast<size_t>(k), call.transport.Recv(peer, tag, target));
  }
  for (int64_t k = 0; k < out_pieces; ++k) {
    const Range piece = ChunkOf(out, out_each, k);
    const ConstBytes part =
        outgoing.subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.count()));
    Operation sent = call.transport.Send(peer, tag, part);
    if (late == nullptr) {
      operations.Start(static_cast<size_t>(in_pieces + k), std::move(sent));
    } else {
      late->Add(std::move(sent));
    }
  }
  return operations.WaitAll(call.deadline);
}

Folding::Folding(int rank, int size) {
  while (power_ * 2 <= size) power_ *= 2;
  extra_ = size - power_;
  if (rank >= 2 * extra_) {
    index_ = rank - extra_;
  } else if (rank % 2 == 1) {
    index_ = rank / 2;
    partner_ = rank - 1;
  } else {
    partner_ = rank + 1;
  }
}

}  // namespace rabit

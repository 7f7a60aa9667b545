// Every rank sends its whole buffer to every other one and reduces all of them itself: one step.
#include <algorithm>
#include <cstring>
#include <vector>

#include "arithmetic/reduce.h"
#include "collective/algorithms.h"
#include "collective/chunks.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

Status ReducePiece(const CollectiveCall& call, const AllreduceArgs& args, Bytes piece,
                   std::byte* scratch) {
  const DType dtype = args.buffer.dtype;
  const int size = call.size();
  const size_t peers = static_cast<size_t>(size);
  std::vector<const std::byte*> inputs(peers);
  for (size_t i = 0; i < peers; ++i) inputs[i] = scratch + i * piece.size();

  OperationSlots receives(peers);
  OperationSlots sends(peers);
  for (int step = 1; step < size; ++step) {
    const int peer = Previous(call.rank(), step, size);
    std::byte* into = scratch + static_cast<size_t>(peer) * piece.size();
    receives.Start(static_cast<size_t>(peer),
                   call.transport.Recv(peer, call.tag, {into, piece.size()}));
  }
  // Sent from a copy: the result overwrites the buffer while slow sends are still in flight.
  std::byte* copy = scratch + static_cast<size_t>(call.rank()) * piece.size();
  std::memcpy(copy, piece.data(), piece.size());
  for (int step = 1; step < size; ++step) {
    const int peer = Next(call.rank(), step, size);
    sends.Start(static_cast<size_t>(peer),
                call.transport.Send(peer, call.tag, {copy, piece.size()}));
  }
  RABIT_RETURN_IF_ERROR(receives.WaitAll(call.deadline));
  const auto count = static_cast<int64_t>(piece.size() / SizeOf(dtype));
  Reduce(args.op, dtype, inputs, piece.data(), count, args.epilogue);
  return sends.WaitAll(call.deadline);
}

}  // namespace

Status RunGatherAll(const CollectiveCall& call, const AllreduceArgs& args) {
  const Elements elements(args.buffer);
  // The algorithm is for tiny buffers; a large one goes through piece by piece, so that the scratch
  // memory stays bounded.
  const Range whole{0, args.buffer.count};
  const int64_t piece_count =
      std::min(kGatherAllPieceBytes / elements.BytesIn(1), args.buffer.count);
  const size_t needed = static_cast<size_t>(elements.BytesIn(piece_count) * call.size());
  RABIT_ASSIGN_OR_RETURN(std::byte * scratch, call.scratch.Get(needed));
  for (int64_t k = 0; k < ChunksIn(whole, piece_count); ++k) {
    RABIT_RETURN_IF_ERROR(
        ReducePiece(call, args, elements.In(ChunkOf(whole, piece_count, k)), scratch));
  }
  return Status();
}

}  // namespace rabit

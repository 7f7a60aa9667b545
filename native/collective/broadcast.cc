#include "collective/broadcast.h"

#include <algorithm>

#include "collective/chunks.h"
#include "collective/cost.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

// Relative to the root, rank v receives from v without its lowest bit and sends to v plus every
// smaller power of two, the farthest first.
Status BroadcastBinomial(const CollectiveCall& call, Bytes buffer, int root) {
  const int size = call.size();
  const int relative = Previous(call.rank(), root, size);
  int reach = 1 << CeilLog2(size);
  if (relative != 0) {
    reach = relative & -relative;
    const int parent = Next(relative - reach, root, size);
    // A rank with a parent has nothing to send before this, and so needs no overlap.
    RABIT_RETURN_IF_ERROR(call.transport.Recv(parent, call.tag, buffer).Wait(call.deadline));
  }
  OperationSlots sends(32);
  size_t started = 0;
  for (int distance = reach / 2; distance >= 1; distance /= 2) {
    if (relative + distance >= size) continue;
    const int child = Next(relative + distance, root, size);
    // The farthest child comes first: it has the most ranks behind it.
    sends.Start(started++, call.transport.Send(child, call.tag, buffer));
  }
  return sends.WaitAll(call.deadline);
}

Status BroadcastChain(const CollectiveCall& call, Bytes buffer, int root) {
  const int size = call.size();
  const int relative = Previous(call.rank(), root, size);
  const Elements elements(buffer.data(), DType::kUint8);
  const Range whole{0, static_cast<int64_t>(buffer.size())};
  const int64_t chunk = ChunkCountFor(call.transport.chunk_limits(), whole.count(), DType::kUint8);
  const size_t chunks = static_cast<size_t>(ChunksIn(whole, chunk));
  const auto chunk_bytes = [&](size_t k) {
    return elements.In(ChunkOf(whole, chunk, static_cast<int64_t>(k)));
  };

  // Every chunk has memory of its own, so all receives are posted before anything is waited for.
  OperationSlots receives(chunks);
  OperationSlots sends(chunks);
  for (size_t k = 0; k < chunks && relative > 0; ++k) {
    receives.Start(k,
                   call.transport.Recv(Previous(call.rank(), 1, size), call.tag, chunk_bytes(k)));
  }
  for (size_t k = 0; k < chunks; ++k) {
    RABIT_RETURN_IF_ERROR(receives.Wait(k, call.deadline));
    if (relative == size - 1) continue;
    sends.Start(k, call.transport.Send(Next(call.rank(), 1, size), call.tag, chunk_bytes(k)));
  }
  return sends.WaitAll(call.deadline);
}

}  // namespace

Status Broadcast(const CollectiveCall& call, Bytes buffer, int root, BroadcastAlgorithm algorithm) {
  if (call.size() == 1 || buffer.empty()) return Status();
  if (algorithm == BroadcastAlgorithm::kChain) return BroadcastChain(call, buffer, root);
  return BroadcastBinomial(call, buffer, root);
}

}  // namespace rabit

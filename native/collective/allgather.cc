#include "collective/allgather.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "collective/chunks.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

std::vector<int64_t> OffsetsOf(std::span<const int64_t> part_bytes) {
  std::vector<int64_t> offsets = {0};
  for (int64_t bytes : part_bytes) offsets.push_back(offsets.back() + bytes);
  return offsets;
}

Bytes Slice(Bytes all, Range range) {
  return all.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.count()));
}

Status GatherDirectly(const CollectiveCall& call, ConstBytes mine, Bytes all,
                      std::span<const int64_t> offsets) {
  const int size = call.size();
  OperationSlots receives(static_cast<size_t>(size));
  OperationSlots sends(static_cast<size_t>(size));
  for (int step = 1; step < size; ++step) {
    const size_t peer = static_cast<size_t>(Previous(call.rank(), step, size));
    const Range part{offsets[peer], offsets[peer + 1]};
    if (part.empty()) continue;
    // All receives are posted before the first send: a message that finds its receive goes straight
    // to its place.
    receives.Start(peer, call.transport.Recv(static_cast<int>(peer), call.tag, Slice(all, part)));
  }
  for (int step = 1; step < size && !mine.empty(); ++step) {
    // Each rank begins with its next neighbour, so that no rank gets the messages of all at the
    // same time.
    const int peer = Next(call.rank(), step, size);
    sends.Start(static_cast<size_t>(peer), call.transport.Send(peer, call.tag, mine));
  }
  RABIT_RETURN_IF_ERROR(receives.WaitAll(call.deadline));
  return sends.WaitAll(call.deadline);
}

// In step s every rank sends on the part that it received in step s - 1.  Parts have different
// numbers of chunks; the order of messages is the same on both sides of a link.
Status GatherAroundRing(const CollectiveCall& call, Bytes all, std::span<const int64_t> offsets) {
  const int size = call.size();
  const int right = Next(call.rank(), 1, size);
  const int left = Previous(call.rank(), 1, size);
  const auto chunks_of_part = [&](int part, std::vector<Range>& into) {
    const Range whole{offsets[static_cast<size_t>(part)], offsets[static_cast<size_t>(part) + 1]};
    for (int64_t k = 0; k < ChunksIn(whole, kChunkBytesMax); ++k) {
      into.push_back(ChunkOf(whole, kChunkBytesMax, k));
    }
  };
  std::vector<Range> incoming;
  std::vector<Range> outgoing;
  chunks_of_part(call.rank(), outgoing);
  const size_t own_chunks = outgoing.size();  // these need not be received first
  for (int step = 0; step < size - 1; ++step) {
    chunks_of_part(Previous(call.rank(), step + 1, size), incoming);
    if (step > 0) chunks_of_part(Previous(call.rank(), step, size), outgoing);
  }

  // Every receive has memory of its own, so all are posted before anything is waited for.
  OperationSlots receives(incoming.size());
  OperationSlots sends(outgoing.size());
  for (size_t i = 0; i < incoming.size(); ++i) {
    receives.Start(i, call.transport.Recv(left, call.tag, Slice(all, incoming[i])));
  }
  for (size_t i = 0; i < outgoing.size(); ++i) {
    if (i >= own_chunks) {
      // What goes on must have come: the order of the incoming chunks is that of the outgoing ones
      // behind the own.
      RABIT_RETURN_IF_ERROR(receives.Wait(i - own_chunks, call.deadline));
    }
    sends.Start(i, call.transport.Send(right, call.tag, Slice(all, outgoing[i])));
  }
  RABIT_RETURN_IF_ERROR(receives.WaitAll(call.deadline));
  return sends.WaitAll(call.deadline);
}

}  // namespace

Status Allgather(const CollectiveCall& call, ConstBytes mine, Bytes all,
                 std::span<const int64_t> part_bytes, AllgatherAlgorithm algorithm) {
  const std::vector<int64_t> offsets = OffsetsOf(part_bytes);
  std::byte* own = all.data() + offsets[static_cast<size_t>(call.rank())];
  // memmove, because `mine` may overlap its place in `all` without being it.
  if (!mine.empty() && mine.data() != own) std::memmove(own, mine.data(), mine.size());
  if (call.size() == 1) return Status();
  if (algorithm == AllgatherAlgorithm::kRing) return GatherAroundRing(call, all, offsets);
  return GatherDirectly(call, {own, mine.size()}, all, offsets);
}

}  // namespace rabit

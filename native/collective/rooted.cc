#include "collective/rooted.h"

#include <cstring>

#include "transport/operation_slots.h"

namespace rabit {

Status Gather(const CollectiveCall& call, ConstBytes mine, Bytes all,
              std::span<const int64_t> part_bytes, int root) {
  if (call.rank() != root) {
    if (mine.empty()) return Status();
    // The wait is for the buffer and not for the root: the caller may change its input afterwards.
    return call.transport.Send(root, call.tag, mine).Wait(call.deadline);
  }
  OperationSlots receives(static_cast<size_t>(call.size()));
  size_t offset = 0;
  for (int rank = 0; rank < call.size(); ++rank) {
    const size_t bytes = static_cast<size_t>(part_bytes[static_cast<size_t>(rank)]);
    const Bytes part = all.subspan(offset, bytes);
    offset += bytes;
    if (part.empty()) continue;
    if (rank != root) {
      // Each part has memory of its own, so the ranks may come in any order.
      receives.Start(static_cast<size_t>(rank), call.transport.Recv(rank, call.tag, part));
    } else if (part.data() != mine.data()) {
      std::memmove(part.data(), mine.data(), bytes);
    }
  }
  return receives.WaitAll(call.deadline);
}

Status Scatter(const CollectiveCall& call, ConstBytes all, std::span<const int64_t> part_bytes,
               Bytes mine, int root) {
  if (call.rank() != root) {
    if (mine.empty()) return Status();
    return call.transport.Recv(root, call.tag, mine).Wait(call.deadline);
  }
  OperationSlots sends(static_cast<size_t>(call.size()));
  size_t offset = 0;
  for (int rank = 0; rank < call.size(); ++rank) {
    const size_t bytes = static_cast<size_t>(part_bytes[static_cast<size_t>(rank)]);
    const ConstBytes part = all.subspan(offset, bytes);
    offset += bytes;
    if (part.empty()) continue;
    if (rank != root) {
      sends.Start(static_cast<size_t>(rank), call.transport.Send(rank, call.tag, part));
    } else if (part.data() != mine.data()) {
      std::memmove(mine.data(), part.data(), bytes);
    }
  }
  return sends.WaitAll(call.deadline);
}

}  // namespace rabit

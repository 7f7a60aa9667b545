#include "collective/barrier.h"

namespace rabit {

Status Barrier(const CollectiveCall& call) {
  const int size = call.size();
  Tag step = 0;
  // The dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier
  // synchronization", 1988): after log2(n) steps each rank has heard, over others, from all.
  for (int distance = 1; distance < size; distance *= 2, ++step) {
    const int from = Previous(call.rank(), distance, size);
    const int to = Next(call.rank(), distance, size);
    // Steps have tags of their own, because a fast peer may be two steps ahead of this rank.
    Operation receive = call.transport.Recv(from, call.tag + step, {});
    Operation send = call.transport.Send(to, call.tag + step, {});
    RABIT_RETURN_IF_ERROR(receive.Wait(call.deadline));
    RABIT_RETURN_IF_ERROR(send.Wait(call.deadline));
  }
  return Status();
}

}  // namespace rabit

#include "collective/alltoall.h"

#include <cstring>
#include <numeric>

#include "transport/operation_slots.h"

namespace rabit {
namespace {

constexpr int kStepsInFlight = 8;  // steps in flight: more would only crowd the links

size_t OffsetOf(std::span<const int64_t> parts, int rank) {
  return static_cast<size_t>(std::accumulate(parts.begin(), parts.begin() + rank, int64_t{0}));
}

}  // namespace

Status Alltoall(const CollectiveCall& call, ConstBytes in, std::span<const int64_t> send_bytes,
                Bytes out, std::span<const int64_t> receive_bytes) {
  const int size = call.size();
  const auto outgoing = [&](int peer) {
    return in.subspan(OffsetOf(send_bytes, peer),
                      static_cast<size_t>(send_bytes[static_cast<size_t>(peer)]));
  };
  const auto incoming = [&](int peer) {
    return out.subspan(OffsetOf(receive_bytes, peer),
                       static_cast<size_t>(receive_bytes[static_cast<size_t>(peer)]));
  };
  const ConstBytes mine = outgoing(call.rank());
  const Bytes mine_to = incoming(call.rank());
  if (mine.size() != mine_to.size()) {
    return InvalidArgument("alltoall on rank " + std::to_string(call.rank()) + ": it sends " +
                           std::to_string(mine.size()) + " bytes to itself but expects " +
                           std::to_string(mine_to.size()) + "; make the two sizes equal");
  }
  if (!mine.empty()) std::memcpy(mine_to.data(), mine.data(), mine.size());

  OperationSlots receives(kStepsInFlight);
  OperationSlots sends(kStepsInFlight);
  const auto start = [&](int step) {
    if (step >= size) return;
    const int from = Previous(call.rank(), step, size);
    const int to = Next(call.rank(), step, size);
    const size_t slot = static_cast<size_t>(step % kStepsInFlight);
    if (const Bytes part = incoming(from); !part.empty()) {
      receives.Start(slot, call.transport.Recv(from, call.tag, part));
    }
    if (const ConstBytes part = outgoing(to); !part.empty()) {
      sends.Start(slot, call.transport.Send(to, call.tag, part));
    }
  };
  for (int step = 1; step <= kStepsInFlight; ++step) start(step);
  for (int step = 1; step < size; ++step) {
    const size_t slot = static_cast<size_t>(step % kStepsInFlight);
    RABIT_RETURN_IF_ERROR(receives.Wait(slot, call.deadline));
    RABIT_RETURN_IF_ERROR(sends.Wait(slot, call.deadline));
    start(step + kStepsInFlight);
  }
  return Status();
}

}  // namespace rabit

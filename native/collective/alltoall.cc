#include "collective/alltoall.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/measured.h"
#include "collective/chunks.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

constexpr double kLeastPiecesInFlight = 3;
constexpr double kMostPiecesInFlight = 1024;

size_t OffsetOf(std::span<const int64_t> parts, int rank) {
  return static_cast<size_t>(std::accumulate(parts.begin(), parts.begin() + rank, int64_t{0}));
}

// Empty past the end.
template <typename View>
View PieceOf(View part, int64_t piece_bytes, int64_t round) {
  const Range piece = ChunkOf({0, static_cast<int64_t>(part.size())}, piece_bytes, round);
  return part.subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.count()));
}

}  // namespace

AlltoallPacing PacingOver(const LinkModel& link) {
  if (!link.is_measured || link.bytes_per_us >= kPacedBytesPerMicro) return {};
  // So many that the link stays busy while an answer is on its way, with room for late ranks.
  const double pieces =
      4 * link.latency_us * link.bytes_per_us / static_cast<double>(kPacedPieceBytes);
  return {.piece_bytes = kPacedPieceBytes,
          .in_flight = static_cast<int64_t>(
              std::clamp(std::ceil(pieces), kLeastPiecesInFlight, kMostPiecesInFlight))};
}

Status Alltoall(const CollectiveCall& call, ConstBytes in, std::span<const int64_t> send_bytes,
                Bytes out, std::span<const int64_t> receive_bytes, const AlltoallPacing& pacing) {
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

  // All ranks go through the same sequence: the first piece to and from each peer, then the second.
  int64_t longest = 0;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == call.rank()) continue;
    const auto at = static_cast<size_t>(peer);
    longest = std::max({longest, send_bytes[at], receive_bytes[at]});
  }
  if (longest == 0) return Status();
  const int64_t piece_bytes = pacing.piece_bytes > 0 ? pacing.piece_bytes : longest;
  const int64_t pieces = ChunksIn({0, longest}, piece_bytes) * (size - 1);
  OperationSlots receives(static_cast<size_t>(pacing.in_flight));
  OperationSlots sends(static_cast<size_t>(pacing.in_flight));
  const auto start = [&](int64_t piece) {
    if (piece >= pieces) return;
    const int64_t round = piece / (size - 1);
    const int step = static_cast<int>(piece % (size - 1)) + 1;
    const int from = Previous(call.rank(), step, size);
    const int to = Next(call.rank(), step, size);
    const auto slot = static_cast<size_t>(piece % pacing.in_flight);
    if (const Bytes part = PieceOf(incoming(from), piece_bytes, round); !part.empty()) {
      // A slot is used again only after both of its operations are over, which the loop below waits
      // for.
      receives.Start(slot, call.transport.Recv(from, call.tag, part));
    }
    if (const ConstBytes part = PieceOf(outgoing(to), piece_bytes, round); !part.empty()) {
      sends.Start(slot, call.transport.Send(to, call.tag, part));
    }
  };
  for (int64_t piece = 0; piece < pacing.in_flight; ++piece) start(piece);
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const auto slot = static_cast<size_t>(piece % pacing.in_flight);
    // In the order in which they were started: pieces of one peer arrive in that order, and others
    // may be ahead meanwhile.
    RABIT_RETURN_IF_ERROR(receives.Wait(slot, call.deadline));
    RABIT_RETURN_IF_ERROR(sends.Wait(slot, call.deadline));
    start(piece + pacing.in_flight);
  }
  return Status();
}

}  // namespace rabit

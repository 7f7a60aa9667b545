#include "transport/routed_transport.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace rabit {
namespace {

Status NoPeer(int rank, int peer, int size) {
  return InvalidArgument("rank " + std::to_string(rank) + " has no peer " + std::to_string(peer) +
                         ": the job has " + std::to_string(size) + " ranks; correct the rank");
}

}  // namespace

RoutedTransport::RoutedTransport(std::vector<std::unique_ptr<Transport>> parts,
                                 std::vector<int> route)
    : parts_(std::move(parts)), route_(std::move(route)) {
  RABIT_CHECK(!parts_.empty(), "a routed transport needs a part");
  RABIT_CHECK(route_.size() == static_cast<size_t>(size()), "every peer needs a route");
  for (const auto& part : parts_) {
    name_ += (name_.empty() ? "" : "+") + std::string(part->name());
  }
}

Operation RoutedTransport::Send(int peer, Tag tag, ConstBytes buffer) {
  if (!HasPeer(peer)) return Operation(NoPeer(rank(), peer, size()));
  return Part(peer).Send(peer, tag, buffer);
}

Operation RoutedTransport::SendAnswered(int peer, Tag tag, ConstBytes buffer) {
  if (!HasPeer(peer)) return Operation(NoPeer(rank(), peer, size()));
  return Part(peer).SendAnswered(peer, tag, buffer);
}

Operation RoutedTransport::Recv(int peer, Tag tag, Bytes buffer) {
  if (!HasPeer(peer)) return Operation(NoPeer(rank(), peer, size()));
  return Part(peer).Recv(peer, tag, buffer);
}

Operation RoutedTransport::RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                                      PieceReducer reducer) {
  if (!HasPeer(peer)) return Operation(NoPeer(rank(), peer, size()));
  return Part(peer).RecvReduce(peer, tag, buffer, scratch, reducer);
}

void RoutedTransport::SetWaiter(int stream, Waiter waiter, size_t call_bytes) {
  // Which part the next wait of this stream goes to is not known here, so all of them hear it.
  for (const auto& part : parts_) part->SetWaiter(stream, waiter, call_bytes);
}

void RoutedTransport::Abort(Status why) {
  // One after the other; a lane that waits in a part that is not aborted yet is woken when its turn
  // comes.
  for (const auto& part : parts_) part->Abort(why);
}

TransportCounters RoutedTransport::counters() const {
  TransportCounters sum;
  for (const auto& part : parts_) {
    const TransportCounters each = part->counters();
    sum.bytes_sent += each.bytes_sent;
    sum.bytes_received += each.bytes_received;
    sum.messages_sent += each.messages_sent;
    sum.messages_received += each.messages_received;
    sum.frames_corrupt += each.frames_corrupt;
    sum.frames_resent += each.frames_resent;
    sum.connections_restored += each.connections_restored;
    sum.frames_late += each.frames_late;
  }
  return sum;
}

ChunkLimits RoutedTransport::chunk_limits() const {
  ChunkLimits largest;
  for (const auto& part : parts_) {
    const ChunkLimits each = part->chunk_limits();
    // The limits must be equal on all ranks of a collective, and which parts its peers have is not:
    // so the largest of all count.
    largest.bytes_min = std::max(largest.bytes_min, each.bytes_min);
    largest.bytes_max = std::max(largest.bytes_max, each.bytes_max);
  }
  return largest;
}

}  // namespace rabit

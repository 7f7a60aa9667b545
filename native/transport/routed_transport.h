// RoutedTransport: one transport made of several, each for the peers it reaches best.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace rabit {

// Owns its parts.  Thread-safe.  A part that moves bytes only while somebody waits on it (shm, mpi)
// stands still while a rank waits on another part: of such parts several may be joined only for
// algorithms that are through with one before they begin with the next, as `hierarchical` is.
class RoutedTransport final : public Transport {
 public:
  // `route`: peer -> index into `parts`; this rank's own entry is not used.  All parts have this
  // rank and size.
  RoutedTransport(std::vector<std::unique_ptr<Transport>> parts, std::vector<int> route);

  std::string_view name() const override { return name_; }
  std::string_view name_for(int peer) const override { return Part(peer).name_for(peer); }
  int rank() const override { return parts_.front()->rank(); }
  int size() const override { return parts_.front()->size(); }
  Operation Send(int peer, Tag tag, ConstBytes buffer) override;
  Operation SendAnswered(int peer, Tag tag, ConstBytes buffer) override;
  Operation Recv(int peer, Tag tag, Bytes buffer) override;
  Operation RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                       PieceReducer reducer) override;
  void SetWaiter(int stream, Waiter waiter, size_t call_bytes) override;
  void Abort(Status why) override;
  TransportCounters counters() const override;  // the sum
  ChunkLimits chunk_limits() const override;    // the largest that a part wants
  int64_t cached_message_bytes(int peer) const override {
    return Part(peer).cached_message_bytes(peer);
  }

 private:
  bool HasPeer(int peer) const { return peer >= 0 && peer < size(); }
  Transport& Part(int peer) const {
    return *parts_[static_cast<size_t>(route_[static_cast<size_t>(peer)])];
  }

  const std::vector<std::unique_ptr<Transport>> parts_;
  const std::vector<int> route_;
  std::string name_;  // "shm+tcp"
};

}  // namespace rabit

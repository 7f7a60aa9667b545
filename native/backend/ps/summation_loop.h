// SummationLoop: sums what the members of one group push on one stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "backend/ps/parameter_store.h"
#include "backend/ps/ps_wire.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "transport/operation_slots.h"
#include "transport/transport.h"

namespace rabit {

// The first member says what comes; then every chunk is received from all of them, summed in the
// order of the ranks and sent back to all.  A group has one loop for each stream, because the
// members of two groups may come to one server in different orders.  One thread.
class SummationLoop {
 public:
  // `members`: ascending ranks of `endpoints`; one alone updates what is kept in `store`.
  // `bytes_summed` counts for all loops of a server; all three outlive it.
  SummationLoop(Transport& endpoints, GroupId group, std::vector<int> members, int stream,
                std::atomic<uint64_t>& bytes_summed, ParameterStore& store);

  // Until a member is lost, or the transport is aborted; returns why.
  Status Run();

 private:
  // As many chunks again as are pushed at once: the sums of those before are still on their way
  // back.
  static constexpr size_t kChunksKept = 2 * kPsChunksInFlight;

  size_t SlotOf(uint64_t chunk, size_t member) const {
    return static_cast<size_t>(chunk % kChunksKept) * members_.size() + member;
  }
  Bytes Input(uint64_t chunk, size_t member, size_t bytes);

  Status Serve(const PushHeader& header);
  Status Ask(const PushHeader& header, uint64_t chunk, size_t bytes);
  Status Answer(const PushHeader& header, uint64_t chunk, size_t bytes);
  // What of the tensor goes back begins where the first member's input does.
  Status Combine(const PushHeader& header, uint64_t chunk, size_t bytes);

  Transport& endpoints_;
  const GroupId group_;
  const std::vector<int> members_;
  const int stream_;
  std::atomic<uint64_t>& bytes_summed_;
  ParameterStore& store_;
  uint64_t chunks_before_ = 0;     // of earlier pushes, whose sums may be under way
  std::vector<std::byte> memory_;  // a chunk of each member, for each chunk kept
  std::vector<const std::byte*> inputs_;
  OperationSlots arriving_, leaving_;
};

}  // namespace rabit

// SummationLoop: sums what the members of one group push on one stream to one place.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "backend/ps/parameter_store.h"
#include "backend/ps/place_copies.h"
#include "backend/ps/ps_wire.h"
#include "base/bytes.h"
#include "base/encoded_sum.h"
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
  // One member alone updates what is kept in `store`.  `bytes_summed` counts for all loops of a
  // server, and so does `silence`; all of them outlive it.  Without `adder` encodings are refused.
  SummationLoop(Transport& endpoints, const PlaceCrew& crew, std::atomic<uint64_t>& bytes_summed,
                ParameterStore& store, const EncodingAdder* adder, const SilenceLimit& silence);

  // Until a member is lost, or the transport is aborted; returns why.  OK: the group has ended.
  Status Run();

 private:
  // As many chunks again as are pushed at once: the sums of those before are still on their way
  // back.
  static constexpr size_t kChunksKept = 2 * kPsChunksInFlight;

  // Of chunk k of the push that is served.
  size_t RoundOf(uint64_t k) const {
    return static_cast<size_t>((chunks_before_ + k) % kChunksKept);
  }
  size_t SlotOf(uint64_t k, size_t member) const {
    return RoundOf(k) * crew_.members.size() + member;
  }
  Bytes Input(uint64_t k, size_t member, size_t bytes);
  bool has_copies() const { return copies_.has_value(); }

  Result<PushHeader> NextHeader();
  Status WaitSent();
  // From chunk `first` on.
  Status Serve(const PushHeader& header, uint64_t first);
  Status Ask(const PushHeader& header, uint64_t k);
  Status Sum(const PushHeader& header, uint64_t k);
  Status Answer(const PushHeader& header, uint64_t k);
  // What of the tensor goes back begins where the first member's input does.
  Status Combine(const PlacedPush& placed, Bytes result);
  Status Update(const PlacedPush& placed, Bytes values);
  Status AddEncodings(Bytes result);

  Transport& endpoints_;
  const PlaceCrew crew_;
  std::atomic<uint64_t>& bytes_summed_;
  ParameterStore& store_;
  const EncodingAdder* const adder_;
  std::optional<PlaceCopies> copies_;  // where others follow in the chain
  uint64_t push_ = 0;                  // that is served, or comes next
  uint64_t chunks_before_ = 0;         // of earlier pushes, whose sums may be under way
  std::vector<std::byte> memory_;      // a chunk of each member, for each chunk kept
  std::vector<const std::byte*> inputs_;
  std::vector<bool> is_refused_;  // of the chunks kept
  OperationSlots arriving_, leaving_;
};

}  // namespace rabit

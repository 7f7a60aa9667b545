// PushPull: one tensor on its way to those that sum it, and back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/ps/placement.h"
#include "backend/ps/ps_wire.h"
#include "base/bytes.h"
#include "base/dtype.h"
#include "base/status.h"
#include "collective/scratch.h"
#include "transport/operation_slots.h"
#include "transport/transport.h"

namespace rabit {

struct PushPullArgs {
  Transport& endpoints;
  int first_server;              // of the ranks of `endpoints`
  std::span<const int> members;  // of the group, as ranks of `endpoints`
  int my_index;                  // among them; the first one tells the servers what comes
  GroupId group;
  Tag tag;
  Deadline deadline;
  TensorView in_out;
  ReduceOp op;
  Scratch& scratch;  // for what other members push to this one
  PushMode mode = PushMode::kSum;
  uint64_t key = 0;
};

// Chunk after chunk of every slice goes out, and the sums come in behind, into the places that the
// chunks came from; all that sum work at the same time, and this rank, if it has a slice of its own,
// is one of them.  The slices have equally many chunks, so that each link is used alike all the time.
// Every worker begins with another place, so that one does not hear from all of them at once.
class PushPull {
 public:
  // A failure of a message with a server.
  using Blame = std::function<Status(int server, const Status& status)>;

  // Places of the slices: the members, and behind them the servers.
  PushPull(const PushPullArgs& args, std::span<const Slice> slices, Blame blame);

  Status Run();

 private:
  struct Part {
    int rank;  // of `endpoints`
    Bytes bytes;
    PushHeader header;
    PushHeaderBytes encoded{};

    int64_t chunks() const { return (header.count + header.chunk_count - 1) / header.chunk_count; }
    Bytes Chunk(int64_t k) const;
  };

  // Of the operations with each of the parts, or of the members.
  size_t SlotOf(int64_t k, size_t i, size_t width) const {
    return static_cast<size_t>(k % kPsChunksInFlight) * width + i;
  }
  bool IsServer(const Part& part) const { return part.rank >= args_.first_server; }
  Bytes Pushed(int64_t k, size_t member, size_t bytes) const;
  Status Failed(int rank, const Status& status) const;

  void Announce();
  void PushAndPull(int64_t k);
  void Expect(int64_t k);
  Status Sum(int64_t k);
  Status Wait(OperationSlots& slots, int64_t k);
  Status Finish(int64_t k);
  Status FinishAll();

  const PushPullArgs args_;
  const Blame blame_;
  std::vector<Part> parts_;  // that others sum
  std::optional<Part> mine_;
  std::byte* pushed_ = nullptr;  // by the others, of chunks that are not summed yet
  std::vector<const std::byte*> inputs_;
  OperationSlots headers_, pushes_, pulls_;
  OperationSlots arriving_, leaving_;  // of the part that this rank sums
};

}  // namespace rabit

// PushPull: one tensor on its way to those that sum it, and back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/ps/holders.h"
#include "backend/ps/placement.h"
#include "backend/ps/ps_wire.h"
#include "base/bytes.h"
#include "base/dtype.h"
#include "base/encoded_sum.h"
#include "base/epilogue.h"
#include "base/result.h"
#include "base/status.h"
#include "collective/scratch.h"
#include "transport/operation_slots.h"
#include "transport/transport.h"

namespace rabit {

// Into how many chunks of at most so many bytes each slice is best cut.
int64_t PsChunksOf(std::span<const Slice> slices, DType dtype, int64_t chunk_bytes_most);

struct PushPullArgs {
  Transport& endpoints;
  int first_server;                     // of the ranks of `endpoints`
  std::span<const int> server_numbers;  // as people know them
  std::span<const int> members;         // of the group, as ranks of `endpoints`
  int my_index;                         // among them; the first one tells the servers what comes
  GroupId group;
  Tag tag;
  Deadline deadline;
  TensorView in_out;
  ReduceOp op;
  Scratch& scratch;          // for what other members push to this one
  int64_t chunk_bytes_most;  // kPsChunkBytesMin to PsChunkBytesMax; equal on all members
  PushMode mode = PushMode::kSum;
  uint64_t key = 0;
  Epilogue epilogue = {};                // of kSum
  const EncodingAdder* adder = nullptr;  // of kCoded
  Holders& holders;
  std::span<PlaceRoute> routes;  // by server; of this group and stream
};

// Chunk after chunk of every slice goes out, and the sums come in behind, into the places that the
// chunks came from; all that sum work at the same time, and this rank, if it has a slice of its
// own, is one of them.  The slices have equally many chunks, or nearly so if they say how long
// these are, so that each link is used alike all the time. Every worker begins with another place,
// so that one does not hear from all of them at once. Where a server is lost, and others have
// copies, its place is found at the next one: that one sends the sums that somebody may have got,
// into memory that was perhaps begun to be overwritten, and asks for all other chunks again, of
// which nobody has any sum.
class PushPull {
 public:
  // A failure of a message with a server.
  using Blame = std::function<Status(int server, const Status& status)>;

  // Places of the slices: the members, and behind them the servers.
  PushPull(const PushPullArgs& args, std::span<const Slice> slices, Blame blame);

  // kInvalidArgument: the servers have refused an update, of which nothing is left under way.
  Status Run();

 private:
  struct Part {
    int rank;   // of `endpoints`
    int place;  // the server that has it first; -1: a worker sums it
    Bytes bytes;
    PushHeader header;
    PushHeaderBytes encoded{};
    bool is_told = false;    // the server knows what comes
    int64_t first_push = 0;  // the first chunk that it has no sum of

    int64_t chunks() const { return static_cast<int64_t>(header.chunks()); }
    Bytes Chunk(int64_t k) const;
  };

  // Of the operations with each of the parts, or of the members.
  size_t SlotOf(int64_t k, size_t i, size_t width) const {
    return static_cast<size_t>(k % kPsChunksInFlight) * width + i;
  }
  bool IsServer(const Part& part) const { return part.place >= 0; }
  PlaceRoute& RouteOf(const Part& part) const {
    return args_.routes[static_cast<size_t>(part.place)];
  }
  Tag TagOf(const Part& part, PlaceStep step) const {
    return PlaceTag(StreamOf(args_.tag), args_.group, step, part.place);
  }
  Bytes Pushed(int64_t k, size_t member, size_t bytes) const;
  Status Failed(int rank, const Status& status) const;

  Status MeetHolders();
  void Announce();
  void PushAndPull(int64_t k);
  void StartChunk(size_t part, int64_t k);
  bool IsLoss(const Part& part, const Status& status) const;
  bool IsUpdate() const { return args_.mode == PushMode::kAdd || args_.mode == PushMode::kFill; }
  Status Refused() const;
  Status MoveOn(size_t part, const Status& why);
  Result<PushPosition> Resume(const Part& part, int64_t at);
  void Expect(int64_t k);
  Status Sum(int64_t k);
  Status Wait(OperationSlots& slots, int64_t k);
  Status LookAround();
  Status Finish(int64_t k);
  Status FinishAll();

  const PushPullArgs args_;
  const Blame blame_;
  std::vector<Part> parts_;  // that others sum
  std::optional<Part> mine_;
  std::byte* pushed_ = nullptr;  // by the others, of chunks that are not summed yet
  std::vector<const std::byte*> inputs_;
  int64_t issued_ = 0, finished_ = 0;  // chunks of each part
  bool is_refused_ = false;            // some of it; the rest comes and goes all the same
  OperationSlots headers_, pushes_, pulls_;
  OperationSlots arriving_, leaving_;  // of the part that this rank sums
};

}  // namespace rabit

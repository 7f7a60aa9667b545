// PushPull: one tensor on its way to the servers and back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/ps/placement.h"
#include "backend/ps/ps_wire.h"
#include "base/bytes.h"
#include "base/dtype.h"
#include "base/status.h"
#include "transport/operation_slots.h"
#include "transport/transport.h"

namespace rabit {

struct PushPullArgs {
  Transport& endpoints;
  int first_server;  // of the ranks of `endpoints`
  int members;       // of the group
  int my_index;      // among them; the first one tells the servers what comes
  GroupId group;
  Tag tag;
  Deadline deadline;
  TensorView in_out;
  ReduceOp op;
};

// Chunk after chunk of every slice goes out, and the sums come in behind, into the places that the
// chunks came from; all servers work at the same time.  Every worker begins with another server, so
// that a server does not hear from all of them at once.
class PushPull {
 public:
  // A failure of a message with a server.
  using Blame = std::function<Status(int server, const Status& status)>;

  PushPull(const PushPullArgs& args, std::span<const Slice> slices, Blame blame);

  Status Run();

 private:
  struct Part {
    int server;
    Bytes bytes;
    PushHeader header;
    PushHeaderBytes encoded{};

    int64_t chunks() const { return (header.count + header.chunk_count - 1) / header.chunk_count; }
    Bytes Chunk(int64_t k) const;
  };

  size_t SlotOf(int64_t k, size_t part) const {
    return static_cast<size_t>(k % kPsChunksInFlight) * parts_.size() + part;
  }
  int RankOf(const Part& part) const { return args_.first_server + part.server; }
  void Announce();
  void PushAndPull(int64_t k);
  Status Finish(int64_t k);

  const PushPullArgs args_;
  const Blame blame_;
  std::vector<Part> parts_;
  OperationSlots headers_, pushes_, pulls_;
};

}  // namespace rabit

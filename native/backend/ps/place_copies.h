// PlaceCopies: what two servers know of a place, so that one of them may be lost.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backend/ps/kept_sums.h"
#include "backend/ps/ps_wire.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/status.h"
#include "transport/operation_slots.h"
#include "transport/transport.h"

namespace rabit {

// Who works on a place of a server.
struct PlaceCrew {
  GroupId group = kWorld;
  std::vector<int> members;  // ascending ranks; one alone updates what is kept
  int stream = 0;
  int place = 0;
  // The servers that have the place one after another, each when all before it are lost.  One:
  // nobody follows.
  std::vector<int> chain;
  size_t mine = 0;  // in it

  bool is_updated() const { return members.size() == 1; }
  Tag TagOf(PlaceStep step) const { return PlaceTag(stream, group, step, place); }
  // Between servers: the workers that push by themselves share a stream, and have no group.
  Tag CopyTagOf(PlaceStep step) const {
    return PlaceTag(stream, is_updated() ? members.front() : group, step, place);
  }
};

// A server that is connected, and does not confirm a copy within this time, gets none any more:
// what the workers wait for does not wait for it.
struct SilenceLimit {
  std::chrono::milliseconds time = std::chrono::seconds(60);
  std::function<void(int rank)> tell = {};  // may be empty
};

// The server that has a place gives every chunk to the next one behind it that lives, and no worker
// hears of the sum before that one has it.  So what some worker has, the next server has; and what
// it does not have, no worker has, and all of them still hold what they pushed.  One thread.
class PlaceCopies {
 public:
  // What to do with a chunk of the workers' own parameters.
  using Chunk = std::function<Status(const PlacedPush& placed, Bytes bytes)>;

  // `silence` outlives it.
  PlaceCopies(Transport& endpoints, PlaceCrew crew, const SilenceLimit& silence);

  // Keeps what the servers before this one in the chain give it, until all of them are lost; each
  // chunk of parameters goes through `apply` first.
  Status Follow(const Chunk& apply);

  struct Taken {
    PushPosition at;                   // the first chunk that nobody has summed
    std::optional<PushHeader> header;  // of its push, unless the first member says it as ever
  };
  // Gives every worker the sums that it lacks; those of parameters are made by `redo` from what was
  // kept.  Returns when all members have come, which may take until they have something to push.
  Result<Taken> TakeOver(const Chunk& redo);

  // The place goes on from `placed`, and the server behind gets it.
  Status Keep(const PlacedPush& placed, ConstBytes bytes);
  // Returns when that one, or nobody, has the oldest chunk that was kept and not waited for yet.
  Status WaitCopied();
  // While nothing is pushed: looks whether the server behind lives, and if not gives the next one
  // all.
  Status LookBehind();

 private:
  static constexpr size_t kParts = 3;  // of a copy: what, its data, and the answer

  // Of those that have sent nothing that was taken yet.
  struct Source {
    int rank = 0;
    PlacedPushBytes bytes{};
    std::optional<Operation> copy;
    KeptSums kept;  // what it has given
  };
  // Returns the one whose next copy has come; those that are lost leave `sources`.  Null: all have.
  Result<Source*> NextCopy(std::vector<std::unique_ptr<Source>>& sources);
  Status Take(Source& source, const Chunk& apply);
  // Nothing more comes from it.  Whoever had the place last has given most.
  void Inherit(Source& source);
  // Whether a member has come.
  Result<bool> Welcome(size_t member, const Chunk& redo, Taken& taken);
  Status Give(size_t member, const PushPosition& from, const Chunk& redo);
  Status WaitSlot(size_t slot);
  void StartCopy(size_t slot);
  bool has_next() const { return behind_ < crew_.chain.size(); }
  void StandBefore(size_t behind);

  Transport& endpoints_;
  const PlaceCrew crew_;
  const SilenceLimit& silence_;
  size_t behind_;  // in the chain: whom this server gives copies
  KeptSums kept_;
  size_t uncopied_ = 0;  // of the newest, those that were not waited for
  std::vector<std::byte> incoming_;
  std::vector<PushPositionBytes> acks_;   // by slot
  std::vector<PlacedPushBytes> resumes_;  // of the members
  PushPositionBytes answer_{}, never_{};
  OperationSlots copying_;
  OperationSlots resuming_;
  OperationSlots answering_;
  OperationSlots giving_;            // by slot and member
  std::optional<Operation> living_;  // over when the server behind is lost
};

}  // namespace rabit

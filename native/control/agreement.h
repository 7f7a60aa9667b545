// Value types of the negotiation: what a rank says, and what all ranks then know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bucket_counts.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "base/shared_list.h"
#include "base/status.h"
#include "base/work.h"

namespace rabit {

// Everything the ranks must agree on for one tensor, except what may differ by nature: extent 0 of
// gathers and of an alltoall, splits.  A vote's bits are its only extent.
struct Signature : Work {
  std::vector<int64_t> shape;
  // How the elements lie in memory: the axes from the outermost on, four bits each, lowest first;
  // 0: row-major.  Element i of one rank meets element i of another, so the orders have to be
  // equal.
  int32_t axis_order = 0;
  int32_t priority = 0;  // larger runs first
  // Scatter: rows for each rank of the group.  Alltoall: empty where every rank of the group gets
  // as many; otherwise extent 0 alone, for the ranks tell each other on the lane who gets how many.
  std::vector<int64_t> splits;

  int64_t count() const {  // product of the shape
    int64_t product = 1;
    for (int64_t extent : shape) product *= extent;
    return product;
  }
  bool operator==(const Signature&) const = default;
};

// The axes of an order from the outermost on.  Some number that is not an order gives one that
// lacks axes or repeats them.
std::vector<int> AxesOf(int32_t axis_order);
// "float32[64,3,7,7]", or "float32[64,3,7,7] with its axes in the order 0,2,3,1 in memory"
std::string Describe(const Signature& signature);

// What the others hear of `why` when `rank` ends the job because of it.
Status GaveUp(int rank, const Status& why);

// How the scheduler cuts, joins and holds back; see ScheduleLimits.  Below zero: as it is.
struct Tunables {
  int64_t partition_bytes = -1;
  int64_t fusion_bytes = -1;
  int64_t credit_bytes = -1;
  int32_t lanes = -1;

  bool operator==(const Tunables&) const = default;
};

inline constexpr int32_t kNoToken = -1;
inline constexpr size_t kCarriedBytesMax = 64 << 10;  // of what a rank or an agreement brings along

// A backend that no rank uses any more.
struct BackendFailure {
  BackendId backend = kAnyBackend;  // as operations name it
  Status why;
};

// What this rank has to say.  Built by the engine, taken by the controller.
struct Announcement {
  struct Entry {
    std::string name;
    Signature signature;
    int32_t token = kNoToken;  // comes back with what is agreed; stays on this rank
    // A small collective may bring its input along, scaled.  If every rank does that has one,
    // the agreement brings the result: see control/carried_data.h.
    std::vector<std::byte> data = {};
  };
  std::vector<Entry> ready;
  BucketCounts buckets_done;  // finished so far on this rank, in order of their ids
  bool wants_stop = false;    // this rank calls no further collective
  bool is_busy = false;       // something is open, agreed or exchanged; does not leave this rank
  bool doubts = false;        // an exchange of this rank lasts: all ranks are to compare
  std::optional<Tunables> tunables;  // rank 0 only: for every rank, from the next agreement on
};

// A tensor that is ready on every rank that takes part.  A message (kSend, kRecv) is described from
// its sender's side: kind kSend, root = receiver.  kJoin is never ready: see last_joined.
struct ReadyTensor {
  TensorId id = -1;
  std::string name;
  Signature signature;  // of the lowest rank that announced it; scatter: of the root
  // Kinds whose ranks may differ: extent 0 of every rank of the group (gathers), or the rows that
  // each rank of the group gets (scatter).  An allgather has none if the ranks bring even parts of
  // the signature's rows, which are then those of all ranks.  An alltoall has the mean of the
  // ranks' extents 0, and none if every rank brings the signature's rows and cuts them evenly.
  // Messages: the global ranks of sender and receiver.  Votes: the OR of all.  Empty otherwise.
  std::vector<int64_t> extents;
  std::vector<int> joined;  // global ranks that contribute the identity element
  // What is made of that which ranks have brought along, so that nothing is left to exchange: their
  // reduction, neither divided nor postscaled, or all inputs in rank order, or that of the root.
  // Empty otherwise.
  std::vector<std::byte> data;
};

// Agreements that name the same tensors as the one before hold the same list.
using ReadyTensors = SharedList<ReadyTensor>;

struct Rejection {
  std::string name;
  GroupId group = kWorld;
  Status why;
  int32_t sender = -1;  // global ranks; only for send and recv
  int32_t receiver = -1;
  int32_t token = kNoToken;  // of this rank's announcement
};

// Identical on every rank, in the same order, but for tokens and `rejected`: it names only what
// this rank has announced.  An agreement that carries nothing but rejections may repeat the last
// cycle.
struct Agreement {
  uint64_t cycle = 0;
  ReadyTensors ready;
  std::vector<int32_t> tokens;  // by place in `ready`: of this rank's announcement, or kNoToken
  std::vector<Rejection> rejected;
  BucketCounts buckets_done;         // smallest over the ranks: the credit
  int last_joined = -1;              // set in the agreement in which every rank has joined
  bool stop = false;                 // every rank wants to stop
  bool compares = false;             // every rank reports what it has made of the agreements so far
  std::optional<Tunables> tunables;  // in force before anything of this agreement is scheduled
  // What is agreed from here on and names no backend goes to others.
  std::optional<BackendFailure> failed_backend;
};

}  // namespace rabit

// Combiner: what a rank inside the tree does with the announcements of the ranks below it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/group.h"
#include "base/status.h"
#include "control/agreement_wire.h"
#include "control/bundle_wire.h"
#include "control/rank_set.h"
#include "control/tensor_key.h"
#include "transport/rank_tree.h"

namespace rabit {

// Holds an announcement of a tensor until every member below has made it, and then says it once for
// all of them: the tensor cannot be agreed earlier, so holding costs nothing.  To rank 0 the result
// is a star whose messages take longer; what is unusual (ranks that differ, joins, rounds that
// failed) passes at once and as it came.  Nothing is held for longer than `hold_us`, so that rank 0
// learns who keeps whom waiting.
//
// A pure state machine: no threads, no sockets, no clock.
class Combiner {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  Combiner(int rank, const RankTree& tree, int64_t hold_us);

  void AddGroup(const Group& group);
  void RemoveGroup(GroupId group) { members_below_.erase(group); }
  // A message of `child`, which speaks for its own subtree.  An error means that it must not be
  // listened to any more; it names the child as the culprit.
  Status OnMessage(int child, ConstBytes message, int64_t now_us);
  // What this rank itself announces.
  void OnOwn(const AnnounceMessage& message, int64_t now_us);
  void OnOwnRefusal(const RefusalMessage& message);
  // Every agreement of rank 0, in order, before any child can have seen it.
  void OnAgreement(const AgreeMessage& message);
  void OnTick(int64_t now_us);
  int64_t next_tick_us() const { return held_ == 0 ? kNever : first_held_us_ + hold_us_; }

  // What must go to the parent now, into `out`; false: nothing.
  bool TakeUp(std::vector<std::byte>& out);

 private:
  // Some ranks' announcement of a tensor.
  struct Claim {
    const RankSet* ranks = nullptr;
    uint64_t seen_cycle = 0;
    int last_rank = 0;
  };
  // One tensor between two agreements.
  struct Round {
    std::vector<Claim> claims;              // held
    std::vector<VariablePart> parts;        // of each claim, id -1: none; or empty
    std::vector<Announcement::Entry> full;  // what all claims say; empty: the number
    int announced = 0;                      // ranks
    bool passes = false;                    // whatever else comes is not held
  };
  struct Known {  // index = id; key.name is empty where the id is free
    TensorKey key;
    uint64_t named_cycle = 0;
    Round round;
  };
  // Part of the message in the making.
  struct Outgoing {
    BundlePart part;
    AnnounceMessage message;
    bool is_merged = false;  // seen_cycle is the least of several
    bool is_raw = false;     // part.message is complete
  };
  // Who speaks, and what the ids in the message mean.
  struct Source {
    const RankSet& ranks;
    uint64_t seen_cycle;
    uint64_t ids_cycle;
    int last_rank;
  };

  void OnAnnounce(const Source& from, const AnnounceMessage& message, int64_t now_us);
  void OnCached(const Source& from, TensorId id, int64_t now_us);
  void OnVariable(const Source& from, const VariablePart& part, int64_t now_us);
  void OnFull(const Source& from, const Announcement::Entry& entry, int64_t now_us);
  void OnStop(const RankSet& ranks, int64_t now_us);
  Status OnPart(int child, const RankSet& ranks, const BundlePart& part, int64_t now_us);
  void UpdateCredit(int child, const BucketCounts& buckets_done);

  Known* Find(TensorId id, uint64_t ids_cycle);
  // True: `round` keeps the claim.
  bool Holds(Round& round, GroupId group, const Source& from, int64_t now_us);
  bool IsComplete(const Round& round, GroupId group) const;
  int MembersBelow(GroupId group) const;  // -1: this rank does not know the group
  void CountHeld(int64_t now_us);
  void Forget(Round& round);  // it is over

  // combiner_output.cc
  void Release(TensorId id, Round& round);
  void ReleaseCached(TensorId id, const Round& round);
  void ReleaseVariable(TensorId id, const Round& round);
  void ReleaseStops();
  // Gives up waiting: what is held goes out as it came.
  void Flush();
  void FlushRound(TensorId id, Round& round);
  // The announcement that speaks for `ranks`.  A merged one may say that they have seen less.
  Outgoing& PartFor(const Source& from, bool is_merged);
  Outgoing& Append(const RankSet& ranks, int last_rank);
  void AppendRaw(const RankSet& ranks, std::vector<std::byte> message);
  // Who claims, and the least they have seen; false: some rank is in two claims.
  bool Unite(const std::vector<Claim>& claims, RankSet& ranks, Claim& all) const;

  const int rank_;
  const int64_t hold_us_;
  RankSet subtree_;
  std::unordered_map<int, RankSet> below_;  // by child, and this rank alone
  std::unordered_map<int, BucketCounts> done_;
  BucketCounts told_done_;
  std::unordered_map<GroupId, int> members_below_;

  std::vector<Known> known_;
  std::unordered_map<TensorKey, TensorId, TensorKeyHash> by_key_;
  std::unordered_map<TensorKey, Round, TensorKeyHash> unnamed_;
  uint64_t cycle_ = 0;
  uint64_t rejected_cycle_ = 0;  // the last one that tells of a rejection

  RankSet stopping_;  // held
  RankSet stopped_;   // told to the parent
  RankSet joined_;

  int held_ = 0;  // rounds and stops
  int64_t first_held_us_ = 0;
  std::deque<RankSet> sets_;  // that claims refer to

  std::vector<Outgoing> out_;
  std::unordered_map<int, size_t> merged_part_;  // by lowest rank
  std::unordered_map<int, size_t> exact_part_;
  size_t mergeable_from_ = 0;  // parts before this stay as they are
  // Neighbours are mostly claimed alike.
  std::vector<const RankSet*> last_claims_;
  size_t last_part_ = 0;
};

}  // namespace rabit

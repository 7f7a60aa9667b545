// TensorRecord: what rank 0 knows about one tensor, between the first announcement and the
// agreement, and from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/group.h"
#include "base/status.h"
#include "control/agreement.h"
#include "control/alltoall_rows.h"
#include "control/carried_data.h"
#include "control/rank_set.h"
#include "control/tensor_key.h"

namespace rabit {

// Who takes part in a tensor: a group, or a pair.
struct TensorMembers {
  std::vector<int> ranks;     // ascending for groups; sender, receiver for pairs
  std::vector<int> index_of;  // by global rank, -1: not a member; empty for pairs
  RankSet set;

  int size() const { return static_cast<int>(ranks.size()); }
  int IndexOf(int rank) const {
    if (!index_of.empty()) return index_of[static_cast<size_t>(rank)];
    return rank == ranks[0] ? 0 : rank == ranks[1] ? 1 : -1;
  }
};

struct TensorRecord {
  TensorKey key;
  std::shared_ptr<const TensorMembers> members;
  int* rounds_of_name = nullptr;  // rounds open under this name, in any group

  // Once agreed.
  TensorId id = -1;
  uint64_t named_cycle = 0;  // of the agreement that gave the id
  uint64_t told_cycle = 0;   // of the last agreement that speaks of this tensor
  Signature agreed;
  bool is_numbered = false;  // no name that comes again, as far as one can tell
  std::list<TensorRecord*>::iterator recency;

  // The open round.
  bool is_open = false;
  size_t open_index = 0;  // position in the list of open records
  RankSet arrived;
  int missing = 0;  // members that have neither announced nor joined
  int64_t first_us = 0;
  int64_t before_last_us = 0;
  int64_t last_us = 0;
  int last_rank = -1;
  Signature reference;  // of first_rank, which all others are compared with
  int first_rank = -1;
  bool reference_is_agreed = true;  // then `reference` is not filled
  bool reference_differs = false;   // from `agreed`: a cached announcement is a mismatch
  int speaker = -1;                 // the rank whose signature the agreement carries
  bool speaker_is_cached = true;    // then `spoken` is not filled
  Signature spoken;
  std::vector<int64_t> extents;
  AlltoallRows alltoall;
  CarriedData carried;

  // Members that had not announced a round when it failed, oldest first.  Their announcement of
  // that round may still be on its way.
  struct Late {
    int rank;
    uint64_t cycle;  // of the agreement that tells of the failure
  };
  std::vector<Late> late;
  bool is_kept = false;  // the coordinator remembers it because of `late`

  int64_t skew_us_max = 0;
  int skew_rank = -1;
};

// Owns the records and gives out ids.  Ids are bounded: beyond the capacity the one that was
// agreed longest ago is taken back, unless it is open.  Of numbered names only a few are kept.
class RecordTable {
 public:
  explicit RecordTable(size_t capacity) : capacity_(capacity) {}
  RecordTable(const RecordTable&) = delete;

  TensorRecord* Find(TensorId id) const {  // null: no such id
    return static_cast<size_t>(id) < by_id_.size() ? by_id_[static_cast<size_t>(id)] : nullptr;
  }
  TensorRecord* Find(const TensorKey& key) const;
  TensorRecord& Add(TensorKey key, std::shared_ptr<const TensorMembers> members);
  // Only records that are not open.
  void Remove(TensorRecord& record);

  // Gives the record an id in the agreement `cycle`; appends ids that had to be taken back.  What
  // the same agreement refers to is never taken back.  False: no id is left.
  bool GiveId(TensorRecord& record, uint64_t cycle, std::vector<TensorId>& evicted);
  void Touch(TensorRecord& record, uint64_t cycle) {
    std::list<TensorRecord*>& list = ListOf(record);
    record.told_cycle = cycle;
    list.splice(list.end(), list, record.recency);
  }

  // Records under this name, open or not.
  std::vector<TensorRecord*> WithName(std::string_view name) const;

  // Those with ids.
  template <class F>
  void ForEachNamed(F f) const {
    for (const TensorRecord* record : recency_) f(*record);
    for (const TensorRecord* record : numbered_) f(*record);
  }

 private:
  static constexpr size_t kNumberedMax = 32;

  void TakeBack(TensorRecord& record);
  // Takes back the ids of numbered names beyond the few that are kept.
  void ForgetNumbered(uint64_t cycle, std::vector<TensorId>& evicted);
  static bool IsInUse(const TensorRecord& record, uint64_t cycle) {
    return record.is_open || record.is_kept || record.told_cycle == cycle;
  }
  std::list<TensorRecord*>& ListOf(const TensorRecord& record) {
    return record.is_numbered ? numbered_ : recency_;
  }

  const size_t capacity_;
  std::unordered_map<TensorKey, std::unique_ptr<TensorRecord>, TensorKeyHash> by_key_;
  std::vector<TensorRecord*> by_id_;
  std::vector<TensorId> free_ids_;
  std::list<TensorRecord*> recency_;   // named records, longest unused first
  std::list<TensorRecord*> numbered_;  // the same, of numbered names

  struct NameUse {
    int open_rounds = 0;
    std::vector<TensorRecord*> records;
  };
  std::unordered_map<std::string, NameUse> by_name_;  // nodes do not move
};

}  // namespace rabit

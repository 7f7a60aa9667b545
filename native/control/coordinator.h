// Coordinator: rank 0's side of the negotiation.  A pure state machine: no threads, no sockets, no
// clock; the caller passes messages and the time in and sends out what Take… returns.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "control/agreement_wire.h"
#include "control/bundle_wire.h"
#include "control/crosscheck.h"
#include "control/schedule_digest.h"
#include "control/skew.h"
#include "control/tensor_record.h"

namespace rabit {

struct CoordinatorOptions {
  int size = 1;
  size_t cache_capacity = 1 << 14;  // ids that all ranks remember
  int64_t stall_warning_us = 10'000'000;
  int64_t stall_abort_us = 0;  // 0: never
  // Ranks that wait for each other are looked at again after this time, before that ends the job.
  int64_t second_look_us = 5'000'000;
  // False saves an agreement whenever only the credit has moved; for schedulers without a limit.
  bool announces_credit = true;
  // From this size on the next tensor goes into another agreement: what is agreed at once may be
  // more than a channel takes as one message.
  size_t agreement_bytes = 1 << 20;
};

// Times are microseconds of one monotonic clock.  A tensor is agreed with the message that makes it
// ready on its last member; groups never wait for each other.
class Coordinator {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  explicit Coordinator(const CoordinatorOptions& options);

  // What `rank` sent, as it came.  Malformed input fails the job and names the rank.
  void OnMessage(int rank, ConstBytes message, int64_t now_us);
  void OnAnnounce(int rank, const AnnounceMessage& message, int64_t now_us);
  // What `child` sent for the ranks `below` it in the tree, itself included.
  void OnBundle(int child, const RankSet& below, ConstBytes message, int64_t now_us);
  // Known to every rank; no announcement names it before.
  void AddGroup(const Group& group);
  // An announcement that names it from here on is refused.
  void RemoveGroup(GroupId group) { groups_.erase(group); }
  // The round fails on every member; to `rank` it is over.
  void OnRefusal(int rank, const RefusalMessage& message, int64_t now_us);
  void OnAbandon(int rank, const Status& why);
  // The first reason for each backend is what all ranks hear.
  void OnBackendFailed(const BackendFailure& failure);
  // Ranks whose digests differ fail the job, and so do those that wait for each other for good.
  void OnDigest(int rank, ScheduleDigest digest, int64_t now_us);
  // Rank 0 is through with everything that was agreed up to now.
  void OnRootQuiet();
  // For every rank from the next agreement on.
  void OnProposal(const Tunables& tunables);
  // No loss if every rank has agreed to stop.
  void OnLost(int rank, const Status& why);
  // Call it at next_tick_us(): looks for stalls.
  void OnTick(int64_t now_us);
  int64_t next_tick_us() const {
    return open_.empty() && !batch_ && !has_reported_ ? kNever : tick_us_;
  }

  // What must go to every rank, rank 0 included; empty: nothing new.
  std::optional<AgreeMessage> TakeAgreement();
  std::optional<std::vector<std::string>> TakeStallReport();
  // The first failure, which every rank must hear of; ok while there is none.
  const Status& failure() const { return failure_; }
  bool has_stopped() const { return has_stopped_; }

  std::vector<std::string> Waiting(int64_t now_us, int64_t older_than_us);
  const SkewStatistics& skew() const { return skew_; }
  const RecordTable& records() const { return records_; }

 private:
  // Who announces the same, and when.
  struct Arrival {
    const RankSet& ranks;
    uint64_t ids_cycle;  // ids mean what they meant then
    int last_rank;       // the last of them to announce it
    int64_t now_us;
  };
  // Tensors that some ranks have announced with the same message while nothing else was open: one
  // comparison for each further rank in place of one look at each tensor.
  struct Batch {
    std::vector<TensorId> ids;
    uint64_t named_cycle = 0;  // of the newest id
    RankSet arrived;
    int64_t first_us = 0;
    int64_t before_last_us = 0;
    int64_t last_us = 0;
    int last_rank = -1;
  };
  struct RankState {
    uint64_t seen_cycle = 0;
    BucketCounts buckets_done;
    bool has_joined = false;
    int stop_place = 0;  // 1: it was the first that wanted to stop; 0: it does not
    // Of its digests that say the same: nobody submits, and all callers are stuck.
    uint64_t submissions = 0;
    int64_t stuck_first_us = -1;  // the first of them; -1: there is none
    int64_t stuck_last_us = -1;

    bool wants_stop() const { return stop_place > 0; }
  };

  // coordinator_rounds.cc
  void ArriveCached(const Arrival& arrival, TensorId id);
  void ArriveVariable(const Arrival& arrival, const VariablePart& part);
  void ArriveFull(const Arrival& arrival, const Announcement::Entry& entry);
  bool IsExpected(TensorRecord& record, int rank);
  void Arrive(TensorRecord& record, const Arrival& arrival, const Signature* signature,
              ConstBytes data = {});
  bool Carry(TensorRecord& record, const RankSet& ranks, const Signature* signature,
             ConstBytes data);
  Status RefuseTwice(const TensorRecord& record, const RankSet& ranks) const;
  void Open(TensorRecord& record, int64_t now_us);
  void SetTick(int64_t now_us);  // when the first tensor is opened
  void Close(TensorRecord& record);
  Status Compare(TensorRecord& record, int rank, const Signature* signature);
  void Remember(TensorRecord& record, const RankSet& ranks, const Signature* signature);
  bool RejectIfStopped(TensorRecord& record);
  static void SettleRows(TensorRecord& record, ReadyReference& ready);
  void Complete(TensorRecord& record);
  // coordinator_batch.cc
  // True: the message was only what the batch is, or has begun one.
  bool JoinsBatch(const AnnounceMessage& message, const Arrival& arrival);
  bool BeginBatch(const AnnounceMessage& message, const Arrival& arrival);
  void CompleteBatch();
  // Before anything else looks at the tensors.
  void SplitBatch();
  void Publish(TensorRecord& record, ReadyReference ready);
  void Reject(TensorRecord& record, Status why, bool fails_late_members);

  // coordinator.cc
  void OnAnnounce(const AnnounceMessage& message, const Arrival& arrival);
  // Of a message: as Arrival, but ids may mean what its sender says itself.
  struct PartSource {
    const RankSet& ranks;
    std::optional<uint64_t> ids_cycle;
    int last_rank;
    int64_t now_us;
  };
  Status OnPart(const PartSource& from, ConstBytes message);
  // Whatever is wrong with a message ends the engine; OK: nothing is.
  void Refuse(int sender, const Status& why);
  void Join(int rank);
  void Stop(int rank);
  void CheckStop();
  void CheckAllJoined();
  void UpdateCredit(const RankSet& ranks, const BucketCounts& buckets_done);
  void ForgetLate();
  std::string NamesakeHint(const TensorRecord& record, const std::vector<int>& absent) const;
  std::vector<int> Absent(const TensorRecord& record) const;
  void FailStalled(int64_t now_us);
  // coordinator_circle.cc
  // True: every rank has answered.
  bool NoteCallers(int rank, const ScheduleDigest& digest, int64_t now_us);
  std::vector<bool> StuckForGood() const;  // by rank
  Status FindCircle();
  void Fail(Status why);
  void Spend(size_t bytes);  // of the next agreement
  void CompleteAgreement();
  uint64_t next_cycle() const { return cycle_ + complete_.size() + 1; }
  // null: unknown group.
  std::shared_ptr<const TensorMembers> MembersOf(const TensorKey& key) const;
  RankState& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const RankState& at(int rank) const { return ranks_[static_cast<size_t>(rank)]; }

  const CoordinatorOptions options_;
  std::vector<RankState> ranks_;
  std::unordered_map<GroupId, std::shared_ptr<const TensorMembers>> groups_;
  RecordTable records_;
  std::vector<TensorRecord*> open_;
  std::optional<Batch> batch_;
  std::vector<TensorRecord*> with_late_;  // records that are kept
  std::set<BackendId> failed_backends_;
  int joined_count_ = 0;
  int last_joined_ = -1;
  int stopped_count_ = 0;
  uint64_t cycle_ = 0;
  BucketCounts credit_;
  AgreeMessage next_;
  size_t next_bytes_ = 0;              // of its parts that grow with the ranks; estimated
  std::deque<AgreeMessage> complete_;  // go before next_
  bool has_news_ = false;
  bool has_stopped_ = false;
  bool is_root_busy_ = false;  // what was agreed last may not be issued, let alone done
  Status failure_;
  bool announces_credit_ = options_.announces_credit;
  int64_t tick_us_ = kNever;
  bool has_reported_ = false;
  int64_t next_look_us_ = 0;  // at what the callers of all ranks do
  uint64_t answers_cycle_ = 0;
  int answers_ = 0;  // after that agreement
  std::optional<std::vector<std::string>> report_;
  SkewStatistics skew_;
  DigestRound digests_;
};

}  // namespace rabit

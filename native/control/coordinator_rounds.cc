// Rounds: from the first announcement of a tensor to its agreement or rejection.
#include <algorithm>
#include <utility>

#include "base/even_rows.h"
#include "base/kind.h"
#include "control/coordinator.h"

namespace rabit {
namespace {

constexpr size_t kVarintBytesMax = 10;
constexpr int64_t kAsAgreed = -1;  // rows: this member's part of those that were agreed

// A pair is described from its sender's side.
Signature SenderView(const Signature& signature, const TensorKey& key) {
  Signature view = signature;
  if (key.is_pair()) {
    view.kind = Kind::kSend;
    view.root = key.receiver;
  }
  return view;
}

std::vector<int64_t> RowsOfScatter(const Signature& root, size_t size) {
  if (!root.splits.empty()) return root.splits;
  return std::vector<int64_t>(size, root.shape[0] / static_cast<int64_t>(size));
}

// Whether `ready`, of which a rank has spoken so, can refer to what was agreed before.
bool FollowsFrom(const Signature& agreed, const Signature& spoken, const ReadyReference& ready) {
  if (!HasSameFixedPart(spoken, agreed)) return false;
  if (!ready.extents.empty()) return true;
  return spoken.kind == Kind::kAlltoall ? IsSameEvenAlltoall(spoken, agreed)
                                        : spoken.shape == agreed.shape;
}

// At most so many on the wire.
size_t BytesOf(const ReadyReference& ready) {
  return kVarintBytesMax * (3 + ready.extents.size() + ready.joined.size()) + ready.data.size();
}

size_t BytesOf(const TensorKey& key, const Signature& signature) {
  const size_t numbers = 16 + signature.shape.size() + signature.splits.size();
  return key.name.size() + signature.codec.size() + kVarintBytesMax * numbers;
}

// Runs `arrive` for each rank alone: what ranks of one message say may still mean something else
// for each of them.
template <class F>
void ForEachAlone(const RankSet& ranks, F arrive) {
  ranks.ForEach([&](int rank) { arrive(RankSet(rank), rank); });
}

}  // namespace

void Coordinator::ArriveCached(const Arrival& arrival, TensorId id) {
  TensorRecord* record = records_.Find(id);
  // An id that meant something else when the rank wrote this: the rank sends the tensor again, in
  // full, as soon as it reads that the id was taken back.
  if (record == nullptr || record->named_cycle > arrival.ids_cycle) return;
  const Kind kind = record->agreed.kind;
  const bool differs = HasVariablePart(kind) && kind != Kind::kAllgather;
  if (arrival.ranks.count() > 1 && (!record->late.empty() || differs)) {
    return ForEachAlone(arrival.ranks, [&](const RankSet& one, int rank) {
      ArriveCached({one, arrival.ids_cycle, rank, arrival.now_us}, id);
    });
  }
  // All ranks of the message are alike for this tensor, so the lowest stands for them.
  const int rank = arrival.ranks.lowest();
  // An announcement that crossed with the rejection of its round must not open the next one.
  if (!IsExpected(*record, rank)) return;
  const bool is_variable = differs && kind != Kind::kAlltoall &&
                           !(kind == Kind::kScatter && rank != record->agreed.root);
  if (is_variable) return ArriveVariable(arrival, {id, 0, {}});
  Arrive(*record, arrival, nullptr);
}

void Coordinator::ArriveVariable(const Arrival& arrival, const VariablePart& part) {
  if (arrival.ranks.count() > 1) {
    return ForEachAlone(arrival.ranks, [&](const RankSet& one, int rank) {
      ArriveVariable({one, arrival.ids_cycle, rank, arrival.now_us}, part);
    });
  }
  TensorRecord* record = records_.Find(part.id);
  if (record == nullptr || record->named_cycle > arrival.ids_cycle) return;
  if (!IsExpected(*record, arrival.ranks.lowest())) return;
  if (!part.data.empty() && !HasVariablePart(record->agreed.kind))
    return Arrive(*record, arrival, nullptr, part.data);
  Signature signature = record->agreed;
  if (!signature.shape.empty()) signature.shape[0] = part.rows;
  signature.splits = part.splits;
  Arrive(*record, arrival, &signature, part.data);
}

void Coordinator::ArriveFull(const Arrival& arrival, const Announcement::Entry& entry) {
  const int rank = arrival.ranks.lowest();
  const Kind kind = entry.signature.kind;
  TensorKey key = KeyOf(entry.name, entry.signature, rank);
  const auto group = groups_.find(entry.signature.group);
  const bool is_member = group != groups_.end() && group->second->set.Contains(arrival.ranks);
  TensorRecord* record = records_.Find(key);
  const bool differs = !is_member || TraitsOf(kind).is_pair || HasVariablePart(kind) ||
                       (record != nullptr && !record->late.empty());
  if (differs && arrival.ranks.count() > 1) {
    return ForEachAlone(arrival.ranks, [&](const RankSet& one, int each) {
      ArriveFull({one, arrival.ids_cycle, each, arrival.now_us}, entry);
    });
  }
  if (record != nullptr && !IsExpected(*record, rank)) return;
  Status alone;
  if (!is_member) {
    alone =
        InvalidArgument(Title(entry.signature.kind, entry.name) + ": rank " + std::to_string(rank) +
                        " is not a member of group " + std::to_string(entry.signature.group) + ".");
  } else if (TraitsOf(kind).is_pair) {
    alone = CheckAlone(entry.name, {rank, entry.signature}, group->second->ranks);
  }
  if (!alone.ok()) {
    // There is no set of members that could wait for this one: only the rank itself fails.
    next_.rejected.push_back({std::move(key), alone.WithCulprit(rank), false});
    has_news_ = true;
    return;
  }
  if (record == nullptr) {
    // The record shares the members: with many tensors per group a copy each would be most of its
    // memory.
    std::shared_ptr<const TensorMembers> members = MembersOf(key);
    record = &records_.Add(std::move(key), std::move(members));
  }
  const Signature signature = SenderView(entry.signature, record->key);
  Arrive(*record, arrival, &signature, entry.data);
}

std::shared_ptr<const TensorMembers> Coordinator::MembersOf(const TensorKey& key) const {
  if (!key.is_pair()) return groups_.at(key.group);
  // A message between two ranks is agreed by these two alone, whatever group names them.
  auto pair = std::make_shared<TensorMembers>();
  pair->ranks = {key.sender, key.receiver};
  pair->set = RankSet(pair->ranks);
  return pair;
}

// False: the announcement belongs to a round that has already failed, on this rank too.
bool Coordinator::IsExpected(TensorRecord& record, int rank) {
  if (record.late.empty()) return true;
  const uint64_t seen_cycle = at(rank).seen_cycle;
  // A rank that had read of a failure answered that round by itself.
  std::erase_if(record.late, [&](const TensorRecord::Late& late) {
    return late.rank == rank && late.cycle <= seen_cycle;
  });
  const auto crossed = std::find_if(record.late.begin(), record.late.end(),
                                    [rank](const auto& late) { return late.rank == rank; });
  if (crossed == record.late.end()) return true;
  record.late.erase(crossed);
  return false;
}

// `signature` null: as agreed.  Several ranks only where none of them has a part of its own.
void Coordinator::Arrive(TensorRecord& record, const Arrival& arrival, const Signature* signature,
                         ConstBytes data) {
  const int rank = arrival.ranks.lowest();
  if (!record.members->set.Contains(arrival.ranks)) {
    return Fail(Internal(RankText(rank) + " announced '" + record.key.name +
                         "' of a group that it is not a member of.")
                    .WithCulprit(rank));
  }
  // The round opens before it is checked: a rejection must find the members that are still to come.
  if (!record.is_open) Open(record, arrival.now_us);
  if (const Status twice = RefuseTwice(record, arrival.ranks); !twice.ok())
    return Reject(record, twice, true);
  record.arrived.Add(arrival.ranks);
  // A rank that has joined is not missed already; if an announcement of it was under way, it is not
  // subtracted twice.
  record.missing -= arrival.ranks.count();
  if (joined_count_ > 0)
    arrival.ranks.ForEach([&](int each) { record.missing += at(each).has_joined ? 1 : 0; });
  record.before_last_us = record.last_us;
  record.last_us = arrival.now_us;
  record.last_rank = arrival.last_rank;
  if (signature != nullptr && !record.key.is_pair()) {
    const Status alone = CheckAlone(record.key.name, {rank, *signature}, record.members->ranks);
    if (!alone.ok()) return Reject(record, alone.WithCulprit(rank), true);
  }
  if (const Status same = Compare(record, rank, signature); !same.ok())
    return Reject(record, same.WithCulprit(rank), true);
  // Only what agrees with the reference is remembered, so the agreement needs no further check.
  Remember(record, arrival.ranks, signature);
  if (!data.empty() && !Carry(record, arrival.ranks, signature, data)) return;
  // A member that has stopped will never announce, and the others would wait for the limit of
  // stalls.
  if (stopped_count_ > 0 && RejectIfStopped(record)) return;
  if (record.missing == 0) Complete(record);
}

void Coordinator::OnRefusal(int rank, const RefusalMessage& message, int64_t now_us) {
  if (!failure_.ok() || has_stopped_) return;
  at(rank).seen_cycle = std::max(at(rank).seen_cycle, message.seen_cycle);
  if (!with_late_.empty()) ForgetLate();
  // The refusal is about one tensor, which may be in the batch.
  SplitBatch();
  const TensorKey& key = message.key;
  const auto group = groups_.find(key.group);
  if (group == groups_.end()) return;  // removed: nobody waits for a tensor of it
  const bool is_member = group->second->set.Contains(rank) &&
                         (!key.is_pair() || rank == key.sender || rank == key.receiver);
  if (!is_member) {
    return Fail(Internal(RankText(rank) + " refused '" + key.name +
                         "' of a group that it is not a member of.")
                    .WithCulprit(rank));
  }
  TensorRecord* record = records_.Find(key);
  if (record == nullptr) record = &records_.Add(key, MembersOf(key));
  if (!IsExpected(*record, rank)) return;
  if (!record->is_open) Open(*record, now_us);
  // The rank counts as arrived, so it is not among those for which the rejection is kept.
  record->arrived.Add(RankSet(rank));
  Reject(*record, Status(message.why).WithCulprit(rank), true);
}

// False: the job has failed.
bool Coordinator::Carry(TensorRecord& record, const RankSet& ranks, const Signature* signature,
                        ConstBytes data) {
  const Signature& said = signature != nullptr ? *signature : record.agreed;
  // Of a broadcast only the root has data; from another rank they would silently become the result.
  const bool is_of_root = TraitsOf(said.kind).carried == Carried::kOfRoot;
  Status fits = CheckCarried(said, data);
  if (is_of_root && !(ranks == RankSet(said.root)))
    fits = Internal("data came that is not the root's");
  if (!fits.ok()) {
    const int rank = ranks.lowest();
    Fail(Status(fits.code(), RankText(rank) + ": '" + record.key.name + "': " + fits.message())
             .WithCulprit(rank));
    return false;
  }
  ranks.ForEach([&](int rank) {
    const int member = is_of_root ? 0 : record.members->IndexOf(rank);
    const int members = is_of_root ? 1 : record.members->size();
    record.carried.Add(static_cast<size_t>(member), static_cast<size_t>(members), data);
  });
  return true;
}

Status Coordinator::RefuseTwice(const TensorRecord& record, const RankSet& ranks) const {
  if (record.arrived.CountCommon(ranks) == 0) return {};
  int twice = -1;
  ranks.ForEach([&](int rank) {
    if (twice < 0 && record.arrived.Contains(rank)) twice = rank;
  });
  return InvalidArgument("'" + record.key.name + "': " + RankText(twice) +
                         " submitted it twice before the others had submitted it once. " +
                         "Give every tensor in flight its own name.")
      .WithCulprit(twice);
}

void Coordinator::Open(TensorRecord& record, int64_t now_us) {
  record.is_open = true;
  // The place in open_ lets Close remove the record without a search.
  record.open_index = open_.size();
  record.missing = record.members->size();
  if (joined_count_ > 0) {
    for (int rank : record.members->ranks) record.missing -= at(rank).has_joined ? 1 : 0;
  }
  record.first_us = record.before_last_us = record.last_us = now_us;
  record.first_rank = record.speaker = record.last_rank = -1;
  record.reference_is_agreed = record.speaker_is_cached = true;
  record.reference_differs = false;
  record.extents.clear();
  record.alltoall = {};
  // The count is shared by all records of the name, so that a hint about namesakes costs nothing if
  // there is one.
  ++*record.rounds_of_name;
  if (open_.empty()) SetTick(now_us);
  // The pointer is good until Close: a record with an open round is never evicted (IsInUse).
  open_.push_back(&record);
}

void Coordinator::SetTick(int64_t now_us) {
  tick_us_ = now_us + options_.stall_warning_us;
  if (options_.stall_abort_us > 0) tick_us_ = std::min(tick_us_, now_us + options_.stall_abort_us);
}

void Coordinator::Close(TensorRecord& record) {
  record.arrived.Clear();
  record.carried = {};
  record.is_open = false;
  --*record.rounds_of_name;
  // The order of open_ means nothing; reports sort for themselves.
  open_[record.open_index] = open_.back();
  open_[record.open_index]->open_index = record.open_index;
  open_.pop_back();
}

Status Coordinator::Compare(TensorRecord& record, int rank, const Signature* signature) {
  if (record.first_rank < 0) {
    record.first_rank = rank;
    if (signature != nullptr) {
      record.reference = *signature;
      record.reference_is_agreed = false;
      // Ranks that announce by id vouch for the agreed signature; comparing with it once here
      // spares a comparison for each of them.
      record.reference_differs =
          record.id >= 0 &&
          !CheckPair(record.key.name, {rank, *signature}, {rank, record.agreed}).ok();
    }
    return {};
  }
  if (signature == nullptr && (record.reference_is_agreed || !record.reference_differs)) return {};
  return CheckPair(
      record.key.name,
      {record.first_rank, record.reference_is_agreed ? record.agreed : record.reference},
      {rank, signature == nullptr ? record.agreed : *signature});
}

// Keeps what the agreement will carry: the speaker's signature, and everybody's extents.
void Coordinator::Remember(TensorRecord& record, const RankSet& ranks, const Signature* signature) {
  const int rank = ranks.lowest();
  const Signature& said = signature == nullptr ? record.agreed : *signature;
  // The lowest rank speaks, so that the agreement does not depend on the order in which messages
  // arrive.
  bool speaks = record.speaker < 0 || rank < record.speaker;
  if (said.kind == Kind::kScatter)
    speaks = record.speaker < 0 || rank == said.root ||
             (rank < record.speaker && record.speaker != said.root);
  if (record.key.is_pair()) speaks = record.speaker < 0 || rank == record.key.sender;
  if (speaks) {
    record.speaker = rank;
    record.speaker_is_cached = signature == nullptr;
    if (signature != nullptr) {
      record.spoken = *signature;
      record.spoken.even_parts = TraitsOf(said.kind).has_even_parts ? record.members->size() : 0;
    }
  }
  const auto size = static_cast<size_t>(record.members->size());
  if (!HasVariablePart(said.kind)) return;
  if (said.kind == Kind::kAllgather && signature == nullptr) return;  // its part of what was agreed
  const auto member = static_cast<size_t>(record.members->IndexOf(rank));
  if (said.kind == Kind::kAllgather || said.kind == Kind::kGather) {
    record.extents.resize(size, said.kind == Kind::kAllgather ? kAsAgreed : 0);
    record.extents[member] = said.shape[0];
    return;
  }
  if (said.kind == Kind::kVote) {
    // A vote is one number for all members, joined by "or".
    record.extents.resize(1);
    record.extents[0] |= said.shape[0];
    return;
  }
  if (said.kind == Kind::kAlltoall) return record.alltoall.Add(said, ranks.count());
  record.extents.resize(size);
  if (rank == said.root) record.extents = RowsOfScatter(said, size);
}

bool Coordinator::RejectIfStopped(TensorRecord& record) {
  int first = -1;  // Others may have stopped because it did.
  for (const int rank : record.members->ranks) {
    if (record.arrived.Contains(rank) || !at(rank).wants_stop() || at(rank).has_joined) continue;
    if (first < 0 || at(rank).stop_place < at(first).stop_place) first = rank;
  }
  if (first < 0) return false;
  const Signature& said = record.reference_is_agreed ? record.agreed : record.reference;
  Reject(record,
         Aborted(Title(said.kind, record.key.name) + ": " + RankText(first) +
                 " has called shutdown and will not take part. Call the same collectives on " +
                 "every rank before shutdown.")
             .WithCulprit(first),
         false);
  return true;
}

// Rows of an allgather that follow from their sum become part of the signature, so that ids say
// them from now on.
void Coordinator::SettleRows(TensorRecord& record, ReadyReference& ready) {
  std::vector<int64_t>& rows = ready.extents;
  const auto size = static_cast<size_t>(record.members->size());
  if (rows.empty() && ready.joined.empty()) return;
  rows.resize(size, kAsAgreed);
  for (const int rank : ready.joined) rows[static_cast<size_t>(record.members->IndexOf(rank))] = 0;
  int64_t sum = 0;
  bool is_sendable = ready.joined.empty();
  for (size_t i = 0; i < size; ++i) {
    if (rows[i] == kAsAgreed) {
      rows[i] =
          EvenRows{record.agreed.shape[0], static_cast<int64_t>(size)}.Of(static_cast<int64_t>(i));
    }
    is_sendable = is_sendable && !__builtin_add_overflow(sum, rows[i], &sum);
  }
  const EvenRows even{sum, static_cast<int64_t>(size)};
  for (size_t i = 0; i < size && is_sendable; ++i)
    is_sendable = rows[i] == even.Of(static_cast<int64_t>(i));
  Signature whole = record.speaker_is_cached ? record.agreed : record.spoken;
  whole.shape[0] = sum;
  if (!is_sendable || !IsShapeSendable(whole.shape)) return;
  record.spoken = std::move(whole);
  record.speaker_is_cached = false;
  rows.clear();
}

void Coordinator::Complete(TensorRecord& record) {
  ReadyReference ready;
  if (record.arrived.count() < record.members->size()) {
    for (const int rank : record.members->ranks)
      if (!record.arrived.Contains(rank)) ready.joined.push_back(rank);
  }
  const Signature& said = record.speaker_is_cached ? record.agreed : record.spoken;
  if (!ready.joined.empty() && (TraitsOf(said.kind).is_rooted || record.key.is_pair())) {
    const bool has_partner =
        !record.key.is_pair() &&
        std::find(ready.joined.begin(), ready.joined.end(), said.root) == ready.joined.end();
    if (!has_partner) {
      const int gone = record.key.is_pair() ? ready.joined[0] : said.root;
      return Reject(record,
                    InvalidArgument(Title(said.kind, record.key.name) + ": " + RankText(gone) +
                                    " has called join and has no data left. Choose a root or " +
                                    "partner that has not joined.")
                        .WithCulprit(gone),
                    false);
    }
  }
  if (ready.joined.empty()) skew_.Add(record);
  ready.extents = std::move(record.extents);
  if (said.kind == Kind::kAllgather) SettleRows(record, ready);
  if (said.kind == Kind::kAlltoall) ready.extents = record.alltoall.Extents();
  // Of an alltoall with extents, each rank cuts its input in its own way.
  const bool is_cut_apart = said.kind == Kind::kAlltoall && !ready.extents.empty();
  const bool is_carried = ready.joined.empty() && !is_cut_apart;
  if (is_carried && record.carried.IsComplete(TraitsOf(said.kind).carried))
    ready.data = record.carried.Result(said);
  Publish(record, std::move(ready));
  Close(record);
}

void Coordinator::Publish(TensorRecord& record, ReadyReference ready) {
  has_news_ = is_root_busy_ = true;
  const bool is_unchanged = record.id >= 0 && (record.speaker_is_cached ||
                                               FollowsFrom(record.agreed, record.spoken, ready));
  if (record.id < 0 && !records_.GiveId(record, next_cycle(), next_.evicted))
    return Fail(ResourceExhausted("more than " + std::to_string(kTensorIdLimit) +
                                  " tensors are in flight. Wait for some of them."));
  records_.Touch(record, next_cycle());
  ready.id = record.id;
  const size_t bytes = BytesOf(ready) + (is_unchanged ? 0 : BytesOf(record.key, record.spoken));
  if (!is_unchanged) {
    record.agreed = record.spoken;
    next_.definitions.push_back({std::move(ready), record.key, record.agreed});
  } else if (ready.extents.empty() && ready.joined.empty() && ready.data.empty()) {
    next_.plain.push_back(record.id);
  } else {
    next_.references.push_back(std::move(ready));
  }
  Spend(bytes);
}

// The record may be gone afterwards.
void Coordinator::Reject(TensorRecord& record, Status why, bool fails_late_members) {
  has_news_ = true;
  const size_t bytes = record.key.name.size() + why.message().size() + kVarintBytesMax;
  next_.rejected.push_back({record.key, std::move(why), fails_late_members});
  if (fails_late_members) {
    for (const int rank : record.members->ranks) {
      if (!record.arrived.Contains(rank) && !at(rank).has_joined)
        record.late.push_back({rank, next_cycle()});
    }
    if (!record.is_kept && !record.late.empty()) {
      record.is_kept = true;
      with_late_.push_back(&record);
    }
  }
  // The same agreement must not take the id back: ranks would announce again what has failed.
  record.told_cycle = next_cycle();
  Close(record);
  if (record.id < 0 && !record.is_kept) records_.Remove(record);
  Spend(bytes);
}

}  // namespace rabit

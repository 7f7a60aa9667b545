#include "control/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace rabit {
namespace {

constexpr size_t kStallLinesMax = 32;

std::shared_ptr<const Members> GroupMembers(std::vector<int> ranks, int size) {
  auto members = std::make_shared<Members>();
  members->index_of.assign(static_cast<size_t>(size), -1);
  for (size_t i = 0; i < ranks.size(); ++i)
    members->index_of[static_cast<size_t>(ranks[i])] = static_cast<int>(i);
  members->ranks = std::move(ranks);
  return members;
}

// A pair is described from its sender's side.
Signature SenderView(const Signature& signature, const TensorKey& key) {
  Signature view = signature;
  if (key.is_pair()) {
    view.kind = Kind::kSend;
    view.root = key.receiver;
  }
  return view;
}

bool IsRooted(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather ||
         kind == Kind::kScatter;
}

bool IsPair(Kind kind) { return kind == Kind::kSend || kind == Kind::kRecv; }

std::string RankText(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options)
    : options_(options),
      ranks_(static_cast<size_t>(options.size)),
      records_(std::clamp<size_t>(options.cache_capacity, 1, kTensorIdLimit)),
      skew_(options.size) {
  RABIT_CHECK(options.size >= 1 && options.size <= kControlRanksMax, "not a number of ranks");
  std::vector<int> all;
  for (int rank = 0; rank < options.size; ++rank) all.push_back(rank);
  groups_[kWorld] = GroupMembers(std::move(all), options.size);
}

void Coordinator::OnMessage(int rank, ConstBytes message, int64_t now_us) {
  const auto refuse = [&](const Status& why) {
    Fail(Status(why.code(), RankText(rank) + ": " + why.message()).WithCulprit(rank));
  };
  const Result<ControlType> type = TypeOf(message);
  if (!type.ok()) return refuse(type.status());
  if (*type == ControlType::kAnnounce) {
    const Result<AnnounceMessage> announce = DecodeAnnounce(message);
    return announce.ok() ? OnAnnounce(rank, *announce, now_us) : refuse(announce.status());
  }
  if (*type == ControlType::kAddGroup) {
    const Result<GroupMessage> group = DecodeGroup(message);
    return group.ok() ? OnGroup(rank, *group) : refuse(group.status());
  }
  if (*type == ControlType::kAbandon) {
    const Result<StatusMessage> cause = DecodeStatus(message);
    return cause.ok() ? OnAbandon(rank, cause->why) : refuse(cause.status());
  }
  refuse(Internal("it sent a message that only rank 0 sends"));
}

void Coordinator::OnAnnounce(int rank, const AnnounceMessage& message, int64_t now_us) {
  if (!failure_.ok() || has_stopped_) return;
  RankState& state = at(rank);
  state.seen_cycle = std::max(state.seen_cycle, message.seen_cycle);
  if (!with_late_.empty()) ForgetLate();
  UpdateCredit(rank, message.buckets_done);
  if ((message.flags & ~next_.flags) != 0) {
    next_.flags |= message.flags;
    has_news_ = true;
  }
  for (TensorId id : message.cached) ArriveCached(rank, id, now_us);
  for (const VariablePart& part : message.variable) ArriveVariable(rank, part, now_us);
  for (const Announcement::Entry& entry : message.full) ArriveFull(rank, entry, now_us);
  if (message.joins && !state.has_joined) Join(rank);
  if (message.wants_stop && !state.wants_stop) Stop(rank);
}

void Coordinator::OnGroup(int rank, const GroupMessage& message) {
  bool is_valid = !message.ranks.empty() && message.id != kWorld;
  for (size_t i = 0; i < message.ranks.size(); ++i) {
    is_valid = is_valid && message.ranks[i] < options_.size &&
               (i == 0 || message.ranks[i] > message.ranks[i - 1]);
  }
  if (!is_valid) {
    return Fail(InvalidArgument(RankText(rank) + " defined group " + std::to_string(message.id) +
                                " as ranks [" + RankList(message.ranks) + "]; a group is a " +
                                "non-empty ascending list of ranks below " +
                                std::to_string(options_.size) + ".")
                    .WithCulprit(rank));
  }
  const auto known = groups_.find(message.id);
  if (known == groups_.end()) {
    groups_[message.id] = GroupMembers(message.ranks, options_.size);
  } else if (known->second->ranks != message.ranks) {
    Fail(Mismatch("group " + std::to_string(message.id) + ": " + RankText(rank) +
                  " defined it as ranks " + RankList(message.ranks) + ", another rank as ranks " +
                  RankList(known->second->ranks) + ". Make groups in the same order on every rank.")
             .WithCulprit(rank));
  }
}

void Coordinator::OnAbandon(int rank, const Status& why) {
  if (has_stopped_) return;
  Fail(Status(why.code(), RankText(rank) + " gave up: " + why.message())
           .WithCulprit(why.culprit() >= 0 ? why.culprit() : rank));
}

void Coordinator::OnLost(int rank, const Status& why) {
  if (has_stopped_) return;
  Fail(why.WithCulprit(rank));
}

void Coordinator::ArriveCached(int rank, TensorId id, int64_t now_us) {
  TensorRecord* record = records_.Find(id);
  // An id that meant something else when the rank wrote this: the rank sends the tensor again, in
  // full, as soon as it reads that the id was taken back.
  if (record == nullptr || record->named_cycle > at(rank).seen_cycle) return;
  if (!IsExpected(*record, rank)) return;
  const Kind kind = record->agreed.kind;
  if (HasVariablePart(kind) && !(kind == Kind::kScatter && rank != record->agreed.root))
    return ArriveVariable(rank, {id, 0, {}}, now_us);
  Arrive(*record, rank, nullptr, now_us);
}

void Coordinator::ArriveVariable(int rank, const VariablePart& part, int64_t now_us) {
  TensorRecord* record = records_.Find(part.id);
  if (record == nullptr || record->named_cycle > at(rank).seen_cycle) return;
  if (!IsExpected(*record, rank)) return;
  Signature signature = record->agreed;
  if (!signature.shape.empty()) signature.shape[0] = part.rows;
  signature.splits = part.splits;
  Arrive(*record, rank, &signature, now_us);
}

void Coordinator::ArriveFull(int rank, const Announcement::Entry& entry, int64_t now_us) {
  TensorKey key = KeyOf(entry.name, entry.signature, rank);
  const auto group = groups_.find(entry.signature.group);
  const bool is_member = group != groups_.end() && group->second->IndexOf(rank) >= 0;
  TensorRecord* record = records_.Find(key);
  if (record != nullptr && !IsExpected(*record, rank)) return;
  Status alone;
  if (!is_member) {
    alone =
        InvalidArgument(Title(entry.signature.kind, entry.name) + ": rank " + std::to_string(rank) +
                        " is not a member of group " + std::to_string(entry.signature.group) + ".");
  } else if (IsPair(entry.signature.kind)) {
    alone = CheckAlone(entry.name, {rank, entry.signature}, group->second->ranks);
  }
  if (!alone.ok()) {
    // There is no set of members that could wait for this one: only the rank itself fails.
    next_.rejected.push_back({std::move(key), alone.WithCulprit(rank), false});
    has_news_ = true;
    return;
  }
  if (record == nullptr) {
    std::shared_ptr<const Members> members = MembersOf(key);
    record = &records_.Add(std::move(key), std::move(members));
  }
  const Signature signature = SenderView(entry.signature, record->key);
  Arrive(*record, rank, &signature, now_us);
}

std::shared_ptr<const Members> Coordinator::MembersOf(const TensorKey& key) const {
  if (!key.is_pair()) return groups_.at(key.group);
  auto pair = std::make_shared<Members>();
  pair->ranks = {key.sender, key.receiver};
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

// `signature` null: as agreed.
void Coordinator::Arrive(TensorRecord& record, int rank, const Signature* signature,
                         int64_t now_us) {
  const int member = record.members->IndexOf(rank);
  if (member < 0) {
    return Fail(Internal(RankText(rank) + " announced '" + record.key.name +
                         "' of a group that it is not a member of.")
                    .WithCulprit(rank));
  }
  if (!record.is_open) Open(record, now_us);
  int64_t& arrived_us = record.arrived_us[static_cast<size_t>(member)];
  if (arrived_us != kNotArrived) {
    return Reject(record,
                  InvalidArgument("'" + record.key.name + "': " + RankText(rank) +
                                  " submitted it twice before the others had submitted it once. " +
                                  "Give every tensor in flight its own name.")
                      .WithCulprit(rank),
                  true);
  }
  arrived_us = now_us;
  if (!at(rank).has_joined) --record.missing;
  record.before_last_us = record.last_us;
  record.last_us = now_us;
  record.last_rank = rank;
  if (signature != nullptr && !record.key.is_pair()) {
    const Status alone = CheckAlone(record.key.name, {rank, *signature}, record.members->ranks);
    if (!alone.ok()) return Reject(record, alone.WithCulprit(rank), true);
  }
  if (const Status same = Compare(record, rank, signature); !same.ok())
    return Reject(record, same.WithCulprit(rank), true);
  Remember(record, rank, signature);
  if (*record.rounds_of_name > 1 && RejectIfRivals(record)) return;
  if (stopped_count_ > 0 && RejectIfStopped(record)) return;
  if (record.missing == 0) Complete(record);
}

void Coordinator::Open(TensorRecord& record, int64_t now_us) {
  record.is_open = true;
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
  ++*record.rounds_of_name;
  if (open_.empty()) {
    tick_us_ = now_us + options_.stall_warning_us;
    if (options_.stall_abort_us > 0)
      tick_us_ = std::min(tick_us_, now_us + options_.stall_abort_us);
  }
  open_.push_back(&record);
}

void Coordinator::Close(TensorRecord& record) {
  std::fill(record.arrived_us.begin(), record.arrived_us.end(), kNotArrived);
  record.is_open = false;
  --*record.rounds_of_name;
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
void Coordinator::Remember(TensorRecord& record, int rank, const Signature* signature) {
  const Signature& said = signature == nullptr ? record.agreed : *signature;
  bool speaks = record.speaker < 0 || rank < record.speaker;
  if (said.kind == Kind::kScatter)
    speaks = record.speaker < 0 || rank == said.root ||
             (rank < record.speaker && record.speaker != said.root);
  if (record.key.is_pair()) speaks = record.speaker < 0 || rank == record.key.sender;
  if (speaks) {
    record.speaker = rank;
    record.speaker_is_cached = signature == nullptr;
    if (signature != nullptr) record.spoken = *signature;
  }
  const auto size = static_cast<size_t>(record.members->size());
  if (!HasVariablePart(said.kind)) return;
  const auto member = static_cast<size_t>(record.members->IndexOf(rank));
  if (said.kind == Kind::kAllgather || said.kind == Kind::kGather) {
    record.extents.resize(size);
    record.extents[member] = said.shape[0];
    return;
  }
  record.extents.resize(size * size);
  if (said.kind == Kind::kScatter && rank != said.root) return;
  for (size_t i = 0; i < size; ++i) {
    record.extents[member * size + i] =
        said.splits.empty() ? said.shape[0] / static_cast<int64_t>(size) : said.splits[i];
  }
}

// Two rounds of one name, each with a member that has announced the other: neither can end.
bool Coordinator::RejectIfRivals(TensorRecord& record) {
  const auto waits_for = [](const TensorRecord& a, int rank) {
    const int member = a.members->IndexOf(rank);
    return member >= 0 && a.arrived_us[static_cast<size_t>(member)] == kNotArrived;
  };
  const auto announcer_awaited_by = [&](const TensorRecord& a, const TensorRecord& b) {
    for (size_t i = 0; i < a.arrived_us.size(); ++i) {
      const int rank = a.members->ranks[i];
      if (a.arrived_us[i] != kNotArrived && waits_for(b, rank)) return rank;
    }
    return -1;
  };
  const auto call = [](const TensorRecord& a, int rank) {
    const Signature& said = a.reference_is_agreed ? a.agreed : a.reference;
    std::string text = std::string(Name(said.kind)) + " in group " + std::to_string(a.key.group);
    if (a.key.is_pair()) {
      text = rank == a.key.sender ? "send to " + RankText(a.key.receiver)
                                  : "recv from " + RankText(a.key.sender);
    }
    return RankText(rank) + " submitted " + text;
  };
  for (TensorRecord* other : records_.WithName(record.key.name)) {
    if (other == &record || !other->is_open) continue;
    const int here = announcer_awaited_by(record, *other);
    const int there = announcer_awaited_by(*other, record);
    if (here < 0 || there < 0) continue;
    const Status why =
        Mismatch("'" + record.key.name + "': " + call(*other, there) + ", " + call(record, here) +
                 ". Make the same call in the same group on every rank.");
    Reject(*other, why.WithCulprit(here), true);
    Reject(record, why.WithCulprit(here), true);
    return true;
  }
  return false;
}

bool Coordinator::RejectIfStopped(TensorRecord& record) {
  for (size_t i = 0; i < record.arrived_us.size(); ++i) {
    const int rank = record.members->ranks[i];
    if (record.arrived_us[i] != kNotArrived || !at(rank).wants_stop || at(rank).has_joined)
      continue;
    const Signature& said = record.reference_is_agreed ? record.agreed : record.reference;
    Reject(record,
           Aborted(Title(said.kind, record.key.name) + ": " + RankText(rank) +
                   " has called shutdown and will not take part. Call the same collectives on " +
                   "every rank before shutdown.")
               .WithCulprit(rank),
           false);
    return true;
  }
  return false;
}

void Coordinator::Complete(TensorRecord& record) {
  ReadyReference ready;
  for (size_t i = 0; i < record.arrived_us.size(); ++i) {
    if (record.arrived_us[i] == kNotArrived) ready.joined.push_back(record.members->ranks[i]);
  }
  const Signature& said = record.speaker_is_cached ? record.agreed : record.spoken;
  if (!ready.joined.empty() && (IsRooted(said.kind) || record.key.is_pair())) {
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
  Publish(record, std::move(ready));
  Close(record);
}

void Coordinator::Publish(TensorRecord& record, ReadyReference ready) {
  has_news_ = true;
  const bool is_unchanged = record.id >= 0 && (record.speaker_is_cached ||
                                               HasSameFixedPart(record.spoken, record.agreed));
  if (record.id < 0 && !records_.GiveId(record, next_cycle(), next_.evicted))
    return Fail(ResourceExhausted("more than " + std::to_string(kTensorIdLimit) +
                                  " tensors are in flight. Wait for some of them."));
  records_.Touch(record, next_cycle());
  ready.id = record.id;
  if (!is_unchanged) {
    record.agreed = record.spoken;
    next_.definitions.push_back({std::move(ready), record.key, record.agreed});
  } else if (ready.extents.empty() && ready.joined.empty()) {
    next_.plain.push_back(record.id);
  } else {
    next_.references.push_back(std::move(ready));
  }
}

// The record may be gone afterwards.
void Coordinator::Reject(TensorRecord& record, Status why, bool fails_late_members) {
  has_news_ = true;
  next_.rejected.push_back({record.key, std::move(why), fails_late_members});
  if (fails_late_members) {
    for (size_t i = 0; i < record.arrived_us.size(); ++i) {
      const int rank = record.members->ranks[i];
      if (record.arrived_us[i] == kNotArrived && !at(rank).has_joined)
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
}

void Coordinator::Join(int rank) {
  at(rank).has_joined = true;
  ++joined_count_;
  last_joined_ = rank;
  const std::vector<TensorRecord*> open = open_;
  for (TensorRecord* record : open) {
    const int member = record->members->IndexOf(rank);
    if (member < 0 || record->arrived_us[static_cast<size_t>(member)] != kNotArrived) continue;
    if (--record->missing == 0) Complete(*record);
  }
  CheckAllJoined();
}

void Coordinator::Stop(int rank) {
  at(rank).wants_stop = true;
  ++stopped_count_;
  const std::vector<TensorRecord*> open = open_;
  for (TensorRecord* record : open) RejectIfStopped(*record);
  CheckAllJoined();
  if (stopped_count_ < options_.size) return;
  next_.stop = true;
  has_news_ = true;
  has_stopped_ = true;
}

// A rank that stops without a join does not keep the joined ones waiting.
void Coordinator::CheckAllJoined() {
  if (joined_count_ == 0) return;
  for (const RankState& state : ranks_) {
    if (!state.has_joined && !state.wants_stop) return;
  }
  for (RankState& state : ranks_) state.has_joined = false;
  joined_count_ = 0;
  next_.last_joined = last_joined_;
  has_news_ = true;
}

void Coordinator::UpdateCredit(int rank, uint64_t buckets_done) {
  RankState& state = at(rank);
  if (buckets_done <= state.buckets_done) return;
  const bool was_lowest = state.buckets_done == credit_;
  state.buckets_done = buckets_done;
  if (!was_lowest) return;
  uint64_t lowest = buckets_done;
  for (const RankState& each : ranks_) lowest = std::min(lowest, each.buckets_done);
  if (lowest == credit_) return;
  credit_ = lowest;
  has_news_ = has_news_ || options_.announces_credit;
}

// A rank that has read of a failure will not send what belongs to the failed round any more.
void Coordinator::ForgetLate() {
  std::erase_if(with_late_, [this](TensorRecord* record) {
    std::erase_if(record->late, [&](const TensorRecord::Late& late) {
      return at(late.rank).has_joined || late.cycle <= at(late.rank).seen_cycle;
    });
    if (!record->late.empty()) return false;
    record->is_kept = false;
    if (record->id < 0 && !record->is_open) records_.Remove(*record);
    return true;
  });
}

std::optional<AgreeMessage> Coordinator::TakeAgreement() {
  if (!has_news_ || !failure_.ok()) return std::nullopt;
  has_news_ = false;
  next_.cycle = ++cycle_;
  next_.buckets_done = credit_;
  std::sort(next_.plain.begin(), next_.plain.end());
  std::sort(next_.evicted.begin(), next_.evicted.end());
  return std::exchange(next_, {});
}

std::optional<std::vector<std::string>> Coordinator::TakeStallReport() {
  return std::exchange(report_, std::nullopt);
}

std::vector<std::string> Coordinator::Waiting(int64_t now_us, int64_t older_than_us) const {
  std::vector<const TensorRecord*> waiting;
  for (const TensorRecord* record : open_) {
    if (now_us - record->first_us >= older_than_us) waiting.push_back(record);
  }
  std::sort(waiting.begin(), waiting.end(), [](const TensorRecord* a, const TensorRecord* b) {
    return a->first_us != b->first_us ? a->first_us < b->first_us : a->key.name < b->key.name;
  });
  std::vector<std::string> lines;
  for (const TensorRecord* record : waiting) {
    if (lines.size() == kStallLinesMax) {
      lines.push_back("and " + std::to_string(waiting.size() - kStallLinesMax) + " more");
      break;
    }
    std::vector<int> absent;
    for (size_t i = 0; i < record->arrived_us.size(); ++i) {
      const int rank = record->members->ranks[i];
      if (record->arrived_us[i] == kNotArrived && !at(rank).has_joined) absent.push_back(rank);
    }
    lines.push_back(WaitingLine(*record, std::move(absent), now_us));
  }
  return lines;
}

void Coordinator::OnTick(int64_t now_us) {
  if (!failure_.ok() || has_stopped_ || now_us < next_tick_us()) return;
  int64_t oldest_us = now_us;
  for (const TensorRecord* record : open_) oldest_us = std::min(oldest_us, record->first_us);
  const int64_t limit_us = options_.stall_abort_us;
  if (limit_us > 0 && now_us - oldest_us >= limit_us) {
    std::string text =
        "no progress for longer than the limit of " + std::to_string(limit_us / 1'000'000) + " s";
    for (const std::string& line : Waiting(now_us, limit_us)) text += "; " + line;
    return Fail(TimedOut(text + ". Submit the same tensors on every rank, or raise the limit."));
  }
  if (now_us - oldest_us >= options_.stall_warning_us) {
    report_ = Waiting(now_us, options_.stall_warning_us);
    has_reported_ = true;
    tick_us_ = now_us + options_.stall_warning_us;
  } else {
    if (has_reported_) report_.emplace();  // nothing is stalled any more
    has_reported_ = false;
    tick_us_ = oldest_us + options_.stall_warning_us;
  }
  if (limit_us > 0) tick_us_ = std::min(tick_us_, oldest_us + limit_us);
}

void Coordinator::Fail(Status why) {
  if (failure_.ok()) failure_ = std::move(why);
}

}  // namespace rabit

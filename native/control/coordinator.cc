#include "control/coordinator.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/check.h"

namespace rabit {
namespace {

constexpr size_t kStallLinesMax = 32;

std::shared_ptr<const TensorMembers> GroupMembers(std::vector<int> ranks, int size) {
  auto members = std::make_shared<TensorMembers>();
  members->index_of.assign(static_cast<size_t>(size), -1);
  for (size_t i = 0; i < ranks.size(); ++i)
    members->index_of[static_cast<size_t>(ranks[i])] = static_cast<int>(i);
  members->set = RankSet(ranks);
  members->ranks = std::move(ranks);
  return members;
}

std::string SecondsText(int64_t us) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(us) * 1e-6);
  return text;
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options)
    : options_(options),
      ranks_(static_cast<size_t>(options.size)),
      records_(std::clamp<size_t>(options.cache_capacity, 1, kTensorIdLimit)),
      skew_(options.size),
      digests_(options.size) {
  RABIT_CHECK(options.size >= 1 && options.size <= kControlRanksMax, "not a number of ranks");
  std::vector<int> all;
  for (int rank = 0; rank < options.size; ++rank) all.push_back(rank);
  groups_[kWorld] = GroupMembers(std::move(all), options.size);
}

void Coordinator::OnMessage(int rank, ConstBytes message, int64_t now_us) {
  Refuse(rank, OnPart({RankSet(rank), std::nullopt, rank, now_us}, message));
}

void Coordinator::OnBundle(int child, const RankSet& below, ConstBytes message, int64_t now_us) {
  const Result<BundleMessage> bundle = DecodeBundle(message);
  if (!bundle.ok()) return Refuse(child, bundle.status());
  // The counts of a bundle are the lowest of all ranks below, so they hold for each of them.
  if (failure_.ok() && !has_stopped_) UpdateCredit(below, bundle->buckets_done);
  for (const BundlePart& part : bundle->parts) {
    // A rank may speak only for its own subtree: otherwise one defective rank could announce for
    // all.
    if (!below.Contains(part.ranks) || !below.Contains(part.last_rank)) {
      return Refuse(child, Internal("it speaks for ranks that are not below it in the tree"));
    }
    const RankSet& ranks = part.ranks.empty() ? below : part.ranks;
    const Status handled = OnPart({ranks, part.ids_cycle, part.last_rank, now_us}, part.message);
    if (!handled.ok()) return Refuse(child, handled);
  }
}

void Coordinator::Refuse(int sender, const Status& why) {
  if (!why.ok())
    // A message that cannot be read leaves the state of its sender unknown, so there is no smaller
    // unit to fail than the job.
    Fail(Status(why.code(), RankText(sender) + ": " + why.message()).WithCulprit(sender));
}

// What one rank has sent, or several have in the same words.
Status Coordinator::OnPart(const PartSource& from, ConstBytes message) {
  const int rank = from.ranks.lowest();
  RABIT_ASSIGN_OR_RETURN(const ControlType type, TypeOf(message));
  switch (type) {
    case ControlType::kAnnounce: {
      RABIT_ASSIGN_OR_RETURN(const AnnounceMessage announced, DecodeAnnounce(message));
      // A combiner has looked the ids up at its own cycle, which may be later than that of the
      // ranks below it.
      OnAnnounce(announced, {from.ranks, from.ids_cycle.value_or(announced.seen_cycle),
                             from.last_rank, from.now_us});
      return {};
    }
    case ControlType::kDigest: {
      RABIT_ASSIGN_OR_RETURN(ScheduleDigest digest, DecodeDigest(message));
      OnDigest(rank, std::move(digest), from.now_us);
      return {};
    }
    case ControlType::kRefuse: {
      RABIT_ASSIGN_OR_RETURN(const RefusalMessage refusal, DecodeRefusal(message));
      OnRefusal(rank, refusal, from.now_us);
      return {};
    }
    case ControlType::kBackendFailed: {
      RABIT_ASSIGN_OR_RETURN(const BackendFailure failure, DecodeBackendFailure(message));
      OnBackendFailed(failure);
      return {};
    }
    case ControlType::kAbandon: {
      RABIT_ASSIGN_OR_RETURN(const StatusMessage cause, DecodeStatus(message));
      OnAbandon(rank, cause.why);
      return {};
    }
    case ControlType::kLost: {
      RABIT_ASSIGN_OR_RETURN(const StatusMessage cause, DecodeStatus(message));
      OnLost(cause.why.culprit(), cause.why);
      return {};
    }
    default:
      return Internal("it sent a message that only rank 0 sends");
  }
}

void Coordinator::OnAnnounce(int rank, const AnnounceMessage& message, int64_t now_us) {
  OnAnnounce(message, {RankSet(rank), message.seen_cycle, rank, now_us});
}

void Coordinator::OnAnnounce(const AnnounceMessage& message, const Arrival& arrival) {
  // The order below is part of the protocol: credit first, since a step that only returns credit
  // must count even if the rest is dropped; then doubts, the batch of the steady step, and the
  // tensors by what they cost; join and stop last, since they answer for what came before them.
  if (!failure_.ok() || has_stopped_) return;
  const RankSet& ranks = arrival.ranks;
  ranks.ForEach(
      [&](int rank) { at(rank).seen_cycle = std::max(at(rank).seen_cycle, message.seen_cycle); });
  // The message shows how far these ranks have read, so rounds that they have seen fail need no
  // place any more.
  if (!with_late_.empty()) ForgetLate();
  UpdateCredit(ranks, message.buckets_done);
  const bool brings_tensors =
      !message.cached.empty() || !message.variable.empty() || !message.full.empty();
  if (brings_tensors) {
    // A rank that submits is not stuck, whatever it said before.
    ranks.ForEach([&](int rank) { at(rank).stuck_first_us = at(rank).stuck_last_us = -1; });
  }
  if (message.doubts) next_.compares = has_news_ = true;
  // The batch keeps the message as it is; only a message that deviates pays for records of single
  // tensors.
  if (JoinsBatch(message, arrival)) return;
  for (TensorId id : message.cached) ArriveCached(arrival, id);
  for (const VariablePart& part : message.variable) ArriveVariable(arrival, part);
  for (const Announcement::Entry& entry : message.full) ArriveFull(arrival, entry);
  if (!message.joins && !message.wants_stop) return;
  ranks.ForEach([&](int rank) {
    if (message.joins && !at(rank).has_joined) Join(rank);
    if (message.wants_stop && !at(rank).wants_stop()) Stop(rank);
  });
}

void Coordinator::AddGroup(const Group& group) {
  groups_[group.id] = GroupMembers(group.ranks, options_.size);
}

void Coordinator::OnAbandon(int rank, const Status& why) {
  if (has_stopped_) return;
  Fail(GaveUp(rank, why));
}

void Coordinator::OnBackendFailed(const BackendFailure& failure) {
  if (!failure_.ok() || has_stopped_ || !failed_backends_.insert(failure.backend).second) return;
  // An agreement carries one failed backend, so a second one begins the next agreement.
  if (next_.failed_backend) CompleteAgreement();
  next_.failed_backend = failure;
  has_news_ = true;
}

void Coordinator::OnDigest(int rank, ScheduleDigest digest, int64_t now_us) {
  if (!failure_.ok() || has_stopped_) return;
  const bool is_last = NoteCallers(rank, digest, now_us);
  // Schedules that differ would make lanes exchange different buckets under one tag, so nothing may
  // go on.
  if (Status same = digests_.Add(rank, std::move(digest)); !same.ok()) return Fail(std::move(same));
  // What one rank has said at this look belongs to what the others say at it.
  if (!is_last) return;
  if (Status circle = FindCircle(); !circle.ok()) Fail(std::move(circle));
}

void Coordinator::OnProposal(const Tunables& tunables) {
  if (!failure_.ok() || has_stopped_) return;
  // A rank that holds back waits for word of credit, which a job without a limit is spared.
  announces_credit_ = announces_credit_ || tunables.credit_bytes > 0;
  next_.tunables = tunables;
  has_news_ = true;
}

void Coordinator::OnLost(int rank, const Status& why) {
  if (has_stopped_) return;
  Fail(why.WithCulprit(rank));
}

void Coordinator::Join(int rank) {
  at(rank).has_joined = true;
  ++joined_count_;
  // The rank that joins last is what join returns, and the agreement tells it to all.
  last_joined_ = rank;
  // Complete closes records and so changes open_: the loop goes over a copy.
  const std::vector<TensorRecord*> open = open_;
  for (TensorRecord* record : open) {
    if (!record->members->set.Contains(rank) || record->arrived.Contains(rank)) continue;
    if (--record->missing == 0) Complete(*record);
  }
  CheckAllJoined();
}

void Coordinator::Stop(int rank) {
  at(rank).stop_place = ++stopped_count_;
  // RejectIfStopped closes records, too.
  const std::vector<TensorRecord*> open = open_;
  for (TensorRecord* record : open) RejectIfStopped(*record);
  CheckAllJoined();
  CheckStop();
}

// A rank may say that it stops while something of its own is open, so that the others do not wait
// for what never comes; but nobody closes a connection before all ranks are through with all
// buckets.  Their number is rank 0's, as soon as it is quiet, for every rank counts the same.
void Coordinator::CheckStop() {
  const bool is_done = !is_root_busy_ && credit_.Covers(at(0).buckets_done);
  if (stopped_count_ < options_.size || has_stopped_ || !is_done) return;
  // After this agreement no rank sends anything, so it must be the last news of this coordinator.
  next_.stop = true;
  has_news_ = true;
  has_stopped_ = true;
}

void Coordinator::OnRootQuiet() {
  is_root_busy_ = false;
  if (failure_.ok()) CheckStop();
}

// A rank that stops without a join does not keep the joined ones waiting.
void Coordinator::CheckAllJoined() {
  if (joined_count_ == 0) return;
  for (const RankState& state : ranks_) {
    if (!state.has_joined && !state.wants_stop()) return;
  }
  for (RankState& state : ranks_) state.has_joined = false;
  joined_count_ = 0;
  next_.last_joined = last_joined_;
  has_news_ = true;
}

void Coordinator::UpdateCredit(const RankSet& ranks, const BucketCounts& buckets_done) {
  bool was_lowest = false;
  ranks.ForEach([&](int rank) {
    BucketCounts& mine = at(rank).buckets_done;
    for (size_t i = 0; i < mine.of.size(); ++i) {
      // The minimum over all ranks is recomputed only if a rank moved that held it: with thousands
      // of ranks most messages cannot change it.
      was_lowest |= mine.of[i] == credit_.of[i] && buckets_done.of[i] > mine.of[i];
    }
    mine.RaiseTo(buckets_done);
  });
  if (!was_lowest) return;
  BucketCounts lowest = at(ranks.lowest()).buckets_done;
  for (const RankState& each : ranks_) lowest.LowerTo(each.buckets_done);
  if (lowest == credit_) return;
  credit_ = lowest;
  has_news_ = has_news_ || announces_credit_;
  CheckStop();
}

// A rank that has read of a failure will not send what belongs to the failed round any more.
void Coordinator::ForgetLate() {
  std::erase_if(with_late_, [this](TensorRecord* record) {
    std::erase_if(record->late, [&](const TensorRecord::Late& late) {
      return at(late.rank).has_joined || late.cycle <= at(late.rank).seen_cycle;
    });
    if (!record->late.empty()) return false;
    record->is_kept = false;
    // A record with an id is kept by the cache; one without an id was kept for the late members
    // alone.
    if (record->id < 0 && !record->is_open) records_.Remove(*record);
    return true;
  });
}

void Coordinator::Spend(size_t bytes) {
  next_bytes_ += bytes;
  if (next_bytes_ >= options_.agreement_bytes) CompleteAgreement();
}

void Coordinator::CompleteAgreement() {
  // An agreement is bounded so that its message fits into the buffers of the channel; what follows
  // begins another one.
  complete_.push_back(std::exchange(next_, {}));
  next_bytes_ = 0;
  has_news_ = false;
}

std::optional<AgreeMessage> Coordinator::TakeAgreement() {
  if (!failure_.ok()) return std::nullopt;
  if (complete_.empty() && has_news_) CompleteAgreement();
  if (complete_.empty()) return std::nullopt;
  AgreeMessage message = std::move(complete_.front());
  complete_.pop_front();
  message.cycle = ++cycle_;
  // Credit and cycle are those of the moment it is sent: an agreement that has waited would carry
  // stale credit and stop ranks for nothing.
  message.buckets_done = credit_;
  if (!std::is_sorted(message.plain.begin(), message.plain.end()))
    std::sort(message.plain.begin(), message.plain.end());
  // The wire format sends differences of ids, so lists must ascend.
  std::sort(message.evicted.begin(), message.evicted.end());
  return message;
}

std::optional<std::vector<std::string>> Coordinator::TakeStallReport() {
  return std::exchange(report_, std::nullopt);
}

std::vector<std::string> Coordinator::Waiting(int64_t now_us, int64_t older_than_us) {
  // Reports are about single tensors, and those of a batch have no open records.
  SplitBatch();
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
    const std::vector<int> absent = Absent(*record);
    lines.push_back(WaitingLine(*record, absent, now_us) + NamesakeHint(*record, absent));
  }
  return lines;
}

// Whom an open tensor waits for.
std::vector<int> Coordinator::Absent(const TensorRecord& record) const {
  std::vector<int> absent;
  for (const int rank : record.members->ranks) {
    if (!record.arrived.Contains(rank) && !at(rank).has_joined) absent.push_back(rank);
  }
  return absent;
}

// A rank that is waited for may have submitted the name elsewhere: another group, or a message.
// That is no error in itself, because one name may be in flight in several groups.
std::string Coordinator::NamesakeHint(const TensorRecord& record,
                                      const std::vector<int>& absent) const {
  if (*record.rounds_of_name < 2) return {};
  for (const TensorRecord* other : records_.WithName(record.key.name)) {
    if (other == &record || !other->is_open) continue;
    for (int rank : absent) {
      if (!other->arrived.Contains(rank)) continue;
      const Signature& said = other->reference_is_agreed ? other->agreed : other->reference;
      std::string call = std::string(Name(said.kind));
      if (other->key.is_pair()) {
        call = rank == other->key.sender ? "send to " + RankText(other->key.receiver)
                                         : "recv from " + RankText(other->key.sender);
      }
      return "; " + RankText(rank) + " has submitted this name as " + call + " in group " +
             std::to_string(other->key.group);
    }
  }
  return {};
}

void Coordinator::OnTick(int64_t now_us) {
  // A tick may come early, because the loop wakes for other reasons.
  if (!failure_.ok() || has_stopped_ || now_us < next_tick_us()) return;
  SplitBatch();
  int64_t oldest_us = now_us;
  for (const TensorRecord* record : open_) oldest_us = std::min(oldest_us, record->first_us);
  const int64_t limit_us = options_.stall_abort_us;
  if (limit_us > 0 && now_us - oldest_us >= limit_us) {
    return FailStalled(now_us);
  }
  if (now_us - oldest_us >= options_.stall_warning_us) {
    report_ = Waiting(now_us, options_.stall_warning_us);
    has_reported_ = true;
    tick_us_ = now_us + options_.stall_warning_us;
    // The answers say what callers do; ranks can wait for each other only in different tensors.
    if (open_.size() > 1 && now_us >= next_look_us_) {
      next_look_us_ = now_us + options_.second_look_us;
      next_.compares = has_news_ = true;
    }
  } else {
    if (has_reported_) report_.emplace();  // nothing is stalled any more
    has_reported_ = false;
    tick_us_ = oldest_us + options_.stall_warning_us;
  }
  if (limit_us > 0) tick_us_ = std::min(tick_us_, oldest_us + limit_us);
}

void Coordinator::FailStalled(int64_t now_us) {
  const int64_t limit_us = options_.stall_abort_us;
  std::string text = "no progress for " + SecondsText(limit_us) + " s, the limit for stalls";
  for (const std::string& line : Waiting(now_us, limit_us)) text += "; " + line;
  int missing = -1;
  for (const TensorRecord* record : open_) {
    if (now_us - record->first_us < limit_us) continue;
    for (const int rank : Absent(*record)) missing = missing < 0 ? rank : std::min(missing, rank);
  }
  Fail(TimedOut(text + ". Submit the same tensors on every rank, or raise RABIT_STALL_ABORT.")
           .WithCulprit(missing));
}

void Coordinator::Fail(Status why) {
  if (failure_.ok()) failure_ = std::move(why);
}

}  // namespace rabit

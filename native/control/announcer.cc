#include "control/announcer.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "base/even_rows.h"
#include "base/kind.h"
#include "control/alltoall_rows.h"
#include "control/carried_data.h"
#include "control/crosscheck.h"

namespace rabit {
namespace {

constexpr size_t kFailedNamesMax = 4096;

}  // namespace

Announcer::Announcer(int rank, int size) : rank_(rank) {
  Group world;
  for (int each = 0; each < size; ++each) world.ranks.push_back(each);
  world.my_index = rank;
  groups_[kWorld] = std::move(world);
}

void Announcer::RemoveGroup(GroupId group) {
  groups_.erase(group);
  // No announcement will ask for these any more.
  for (auto& [name, rounds] : failed_rounds_)
    std::erase_if(rounds, [&](const FailedRound& each) { return each.key.group == group; });
  std::erase_if(failed_rounds_, [](const auto& each) { return each.second.empty(); });
}

const Group* Announcer::FindGroup(GroupId id) const {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : &found->second;
}

AnnounceMessage Announcer::Prepare(const Announcement& mine, int64_t now_us) {
  AnnounceMessage message;
  // Rank 0 needs the cycle to know what the ids below mean: it may have given one to another name
  // since.
  message.seen_cycle = cycle_;
  message.buckets_done = mine.buckets_done;
  message.wants_stop = mine.wants_stop;
  message.doubts = mine.doubts;
  message.cached.reserve(mine.ready.size());
  for (const Announcement::Entry& entry : mine.ready) PrepareEntry(entry, now_us, message);
  // Rank 0 compares the lists of all ranks as they are, so equal steps must send equal lists.
  if (!std::is_sorted(message.cached.begin(), message.cached.end()))
    std::sort(message.cached.begin(), message.cached.end());
  return message;
}

bool Announcer::HasNews(const AnnounceMessage& message) {
  const bool has_progress =
      !told_done_.Covers(message.buckets_done) || message.wants_stop != told_stop_;
  told_done_ = message.buckets_done;
  told_stop_ = message.wants_stop;
  return has_progress || !message.cached.empty() || !message.variable.empty() ||
         !message.full.empty() || message.joins || message.doubts;
}

void Announcer::PrepareEntry(const Announcement::Entry& entry, int64_t now_us,
                             AnnounceMessage& message) {
  ++counters_.announced;
  if (RejectLocally(entry)) return;
  if (entry.signature.kind == Kind::kJoin) {
    // From here on this rank contributes to every tensor what changes nothing; a tensor of its own
    // would be counted twice.
    has_joined_ = true;
    message.joins = true;
    return;
  }
  const TensorId id = Find(entry.name, entry.signature);
  if (id < 0) {
    // The definition that answers this announcement moves the entry to its id.
    unnamed_[KeyOf(entry.name, entry.signature, rank_)] = {entry.signature, now_us, entry.token};
    message.full.push_back(entry);
    return;
  }
  Known& known = known_[static_cast<size_t>(id)];
  Round& round = rounds_[static_cast<size_t>(id)];
  round.open_us = now_us;
  round.token = entry.token;
  // An id stands for what this rank said the last time, not for what was agreed: rank 0 compares
  // only signatures that are sent in full.
  if (round.open == Open::kNo && round.has_own && HasSameFixedPart(known.own, entry.signature))
    return AnnounceCached(id, entry, message);
  known.own = entry.signature;
  round.has_own = true;
  round.open = Open::kFull;
  message.full.push_back(entry);
}

void Announcer::AnnounceCached(TensorId id, const Announcement::Entry& entry,
                               AnnounceMessage& message) {
  const Signature& signature = entry.signature;
  Known& known = known_[static_cast<size_t>(id)];
  Round& round = rounds_[static_cast<size_t>(id)];
  round.open = Open::kCached;
  ++counters_.announced_cached;
  const bool is_variable = BringsOwnPart(signature, known.agreed);
  // The variable part may differ from step to step without a new definition, so it is not a part of
  // what the id stands for.
  known.own.shape = signature.shape;
  known.own.splits = signature.splits;
  if (!is_variable && entry.data.empty()) {
    message.cached.push_back(id);
    return;
  }
  if (!HasVariablePart(signature.kind)) {
    message.variable.push_back({id, 0, {}, entry.data});
    return;
  }
  message.variable.push_back(
      {id, signature.shape.empty() ? 0 : signature.shape[0], signature.splits, entry.data});
}

// Whether the id does not say all that this rank has to say.
bool Announcer::BringsOwnPart(const Signature& mine, const Signature& agreed) const {
  if (mine.kind == Kind::kAlltoall) return !IsSameEvenAlltoall(mine, agreed);
  if (mine.kind == Kind::kScatter) return mine.root == rank_;
  if (mine.kind == Kind::kAllgather) {
    const Group& group = *FindGroup(mine.group);
    return mine.shape[0] != EvenRows{agreed.shape[0], group.size()}.Of(group.my_index);
  }
  return HasVariablePart(mine.kind);
}

// -1: no id.
TensorId Announcer::Find(const std::string& name, const Signature& signature) {
  SetKey(searched_, name, signature, rank_);
  const auto found = by_key_.find(searched_);
  return found == by_key_.end() ? -1 : found->second;
}

Status Announcer::CheckSendable(const Announcement::Entry& entry) const {
  const Signature& s = entry.signature;
  // Only where it is needed: this runs for every tensor of every step.
  const auto who = [&] { return Title(s.kind, entry.name) + " on rank " + std::to_string(rank_); };
  if (entry.name.empty() || entry.name.size() > kNameBytesMax) {
    return InvalidArgument(who() + ": a name has 1 to " + std::to_string(kNameBytesMax) +
                           " bytes, this one has " + std::to_string(entry.name.size()) +
                           ". Choose another.");
  }
  if (has_joined_) {
    return InvalidArgument(who() +
                           ": this rank has called join, and not every rank has yet. Wait " +
                           "for join to finish before the next collective.");
  }
  const Group* group = FindGroup(s.group);
  if (group == nullptr || !group->is_member()) {
    return InvalidArgument(who() + ": this rank is not a member of group " +
                           std::to_string(s.group) + ". Submit it on the group's own ranks only.");
  }
  if (s.kind == Kind::kJoin && s.group != kWorld) {
    return InvalidArgument(who() + ": join is for all ranks, not for group " +
                           std::to_string(s.group) + ". Leave the group out.");
  }
  const bool has_good_splits =
      std::all_of(s.splits.begin(), s.splits.end(), [](int64_t split) { return split >= 0; });
  if (!IsShapeSendable(s.shape) || !has_good_splits) {
    return InvalidArgument(who() + ": the shape " + Describe(s) + " or its splits have negative " +
                           "numbers, overflow 64 bits, or have more than " +
                           std::to_string(kDimensionsMax) + " axes. Pass a smaller tensor.");
  }
  if (s.root < -1 || s.root >= kControlRanksMax || s.codec.size() > kCodecBytesMax ||
      s.backend < kAnyBackend)
    return InvalidArgument(who() + ": root, codec or backend is out of range. Pass valid numbers.");
  return {};
}

bool Announcer::RejectLocally(const Announcement::Entry& entry) {
  Status why = CheckSendable(entry);
  // The other ranks have failed in this round already: announcing it would open a second round that
  // no other rank joins.
  if (why.ok() && !failed_rounds_.empty())
    why = TakeFailedRound(KeyOf(entry.name, entry.signature, rank_));
  if (why.ok()) return false;
  ++counters_.rejected;
  const TensorKey key = KeyOf(entry.name, entry.signature, rank_);
  // Rank 0 hears nothing of it. The engine gets the rejection by TakeLocal, as if it had been
  // agreed.
  local_.rejected.push_back(
      {key.name, key.group, std::move(why), key.sender, key.receiver, entry.token});
  return true;
}

Status Announcer::TakeFailedRound(const TensorKey& key) {
  const auto found = failed_rounds_.find(key.name);
  if (found == failed_rounds_.end()) return {};
  std::vector<FailedRound>& rounds = found->second;
  const auto round = std::find_if(rounds.begin(), rounds.end(),
                                  [&](const FailedRound& each) { return each.key == key; });
  if (round == rounds.end()) return {};
  Status why = std::move(round->why);
  rounds.erase(round);
  if (rounds.empty()) failed_rounds_.erase(found);
  return why;
}

std::optional<RefusalMessage> Announcer::Refuse(const TensorKey& key, const Status& why) {
  const Group* const group = FindGroup(key.group);
  const bool has_partners = group != nullptr && group->is_member() && group->size() > 1;
  // No other rank can have announced a tensor of a group of one, so there is no round to end.
  if (has_joined_ || !has_partners) return std::nullopt;
  // The round has failed on the others before, and this is how it fails here.
  if (!TakeFailedRound(key).ok()) return std::nullopt;
  ++refused_[key];
  return RefusalMessage{cycle_, key, why};
}

std::optional<Agreement> Announcer::TakeLocal() {
  if (local_.rejected.empty()) return std::nullopt;
  local_.cycle = cycle_;
  local_.buckets_done = credit_;
  return std::exchange(local_, {});
}

std::optional<AnnounceMessage> Announcer::TakeResend() {
  if (resend_.full.empty()) return std::nullopt;
  resend_.seen_cycle = cycle_;
  resend_.buckets_done = told_done_;
  resend_.wants_stop = told_stop_;
  return std::exchange(resend_, {});
}

Result<Agreement> Announcer::Apply(AgreeMessage&& message) {
  if (message.cycle != cycle_ + 1) {
    return Internal("rank 0 sent agreement " + std::to_string(message.cycle) + " after " +
                    std::to_string(cycle_) + " to rank " + std::to_string(rank_));
  }
  // Agreements come over one ordered connection; a gap is an error in rank 0 and nothing that
  // waiting could mend.
  cycle_ = message.cycle;
  credit_ = message.buckets_done;
  ++counters_.cycles;
  // Evictions come first: a definition of the same agreement may give the id to another tensor.
  for (TensorId id : message.evicted) Evict(id);
  Agreement agreement;
  agreement.cycle = message.cycle;
  agreement.buckets_done = message.buckets_done;
  agreement.last_joined = message.last_joined;
  agreement.stop = message.stop;
  agreement.compares = message.compares;
  agreement.tunables = message.tunables;
  agreement.failed_backend = std::move(message.failed_backend);
  RABIT_RETURN_IF_ERROR(FillReady(message, agreement));
  for (RejectMessage& rejected : message.rejected) ApplyRejection(std::move(rejected), agreement);
  // All ranks have joined, so this one may submit again.
  if (message.last_joined >= 0) has_joined_ = false;
  return agreement;
}

Status Announcer::FillReady(AgreeMessage& message, Agreement& agreement) {
  const bool is_plain = message.references.empty() && message.definitions.empty();
  // A list of ids is worth only what they mean, and these change that.
  if (!message.evicted.empty() || !message.definitions.empty()) last_plain_.clear();
  if (is_plain && message.plain.empty()) return {};
  // A steady step sends the same ids again; the tensors of the last agreement are shared instead of
  // copied.
  const bool is_repeated = is_plain && !last_plain_.empty() && message.plain == last_plain_;
  if (!is_repeated) {
    std::vector<ReadyTensor> ready;
    ready.reserve(message.plain.size() + message.references.size() + message.definitions.size());
    for (TensorId id : message.plain) RABIT_RETURN_IF_ERROR(AppendReady({id, {}, {}}, ready));
    for (ReadyReference& reference : message.references)
      RABIT_RETURN_IF_ERROR(AppendReady(std::move(reference), ready));
    for (Definition& definition : message.definitions) {
      RABIT_RETURN_IF_ERROR(Define(definition));
      RABIT_RETURN_IF_ERROR(AppendReady(std::move(definition.ready), ready));
    }
    agreement.ready = ReadyTensors(std::move(ready));
    last_ready_ = is_plain ? agreement.ready : ReadyTensors();
    last_plain_ = is_plain ? std::move(message.plain) : std::vector<TensorId>();
  } else {
    agreement.ready = last_ready_;
  }
  agreement.tokens.reserve(agreement.ready.size());
  for (const ReadyTensor& tensor : agreement.ready)
    agreement.tokens.push_back(TakeToken(tensor.id));
  return {};
}

int32_t Announcer::TakeToken(TensorId id) {
  Round& round = rounds_[static_cast<size_t>(id)];
  return std::exchange(round.open, Open::kNo) == Open::kNo ? kNoToken : round.token;
}

void Announcer::Evict(TensorId id) {
  if (static_cast<size_t>(id) >= known_.size()) return;
  Known& known = known_[static_cast<size_t>(id)];
  Round& round = rounds_[static_cast<size_t>(id)];
  if (known.key.name.empty()) return;
  ++counters_.evicted;
  if (round.open != Open::kNo) {
    // Rank 0 takes back only what nobody has open, so this announcement is still on its way.  By
    // id it means nothing any more; in full it stands.
    if (round.open == Open::kCached) resend_.full.push_back({known.key.name, known.own});
    unnamed_[known.key] = {known.own, round.open_us, round.token};
  }
  by_key_.erase(known.key);
  known = {};
  round = {};
}

Status Announcer::Define(const Definition& definition) {
  const auto index = static_cast<size_t>(definition.ready.id);
  if (index >= known_.size()) {
    // Rank 0 gives an id that is free before a new one, so the vectors stay as long as its cache.
    known_.resize(index + 1);
    rounds_.resize(index + 1);
  }
  Known& known = known_[index];
  Round& round = rounds_[index];
  if (!known.key.name.empty() && known.key != definition.key) {
    return Internal("rank 0 gave the id " + std::to_string(index) + " of '" + known.key.name +
                    "' to '" + definition.key.name + "'");
  }
  if (known.key.name.empty()) {
    known.key = definition.key;
    by_key_[known.key] = definition.ready.id;
    if (const auto mine = unnamed_.find(known.key); mine != unnamed_.end()) {
      // The announcement in full is still open: what it said belongs to the id from now on.
      known.own = std::move(mine->second.own);
      round.token = mine->second.token;
      round.has_own = true;
      round.open = Open::kFull;
      unnamed_.erase(mine);
    }
  }
  // What this rank last said was about another signature, unless it took part in this one.
  if (round.open == Open::kNo) round.has_own = false;
  known.agreed = definition.signature;
  RABIT_RETURN_IF_ERROR(CheckParts(known));
  return {};
}

// What lanes count on when they cut and join.
Status Announcer::CheckParts(const Known& known) const {
  const Signature& agreed = known.agreed;
  const bool has_parts = TraitsOf(agreed.kind).has_even_parts;
  const Group* const group = FindGroup(agreed.group);
  const bool fits = group == nullptr || agreed.even_parts == group->size();
  if (has_parts ? fits && !agreed.shape.empty() : agreed.even_parts == 0) return {};
  return Internal("rank 0 agreed on '" + known.key.name + "', " + Describe(agreed) + ", in " +
                  std::to_string(agreed.even_parts) + " parts");
}

Status Announcer::AppendReady(ReadyReference&& ready, std::vector<ReadyTensor>& to) {
  const auto index = static_cast<size_t>(ready.id);
  if (index >= known_.size() || known_[index].key.name.empty()) {
    return Internal("rank 0 agreed on the unknown id " + std::to_string(ready.id) + " with rank " +
                    std::to_string(rank_));
  }
  const Known& known = known_[index];
  ReadyTensor& tensor = to.emplace_back();
  tensor.id = ready.id;
  tensor.name = known.key.name;
  tensor.signature = known.agreed;
  tensor.extents = std::move(ready.extents);
  tensor.joined = std::move(ready.joined);
  tensor.data = std::move(ready.data);
  if (!tensor.extents.empty()) tensor.signature.even_parts = 0;  // this time
  RABIT_RETURN_IF_ERROR(FillExtents(known, tensor));
  const Group* const group = FindGroup(tensor.signature.group);
  if (tensor.data.empty() || group == nullptr) return {};
  return CheckCarriedResult(tensor, group->size());
}

// Completes extents, and gives the signature the rows and splits of its rank.
Status Announcer::FillExtents(const Known& known, ReadyTensor& tensor) const {
  Signature& signature = tensor.signature;
  if (known.key.is_pair()) {
    tensor.extents = {known.key.sender, known.key.receiver};
    return {};
  }
  if (!HasVariablePart(signature.kind)) return {};
  if (signature.kind == Kind::kAlltoall && tensor.extents.empty()) {  // even, as agreed
    if (!signature.shape.empty()) return {};
    return Internal("rank 0 agreed on '" + tensor.name + "', an alltoall without rows");
  }
  if (signature.kind == Kind::kAllgather && tensor.extents.empty()) return {};  // even, as agreed
  const Group* group = FindGroup(signature.group);
  if (group == nullptr) return {};  // of other ranks; this one only counts the bucket
  const auto size = static_cast<size_t>(group->size());
  const bool is_gather = signature.kind == Kind::kAllgather || signature.kind == Kind::kGather;
  if (tensor.extents.size() != (is_gather || signature.kind == Kind::kScatter ? size : 1)) {
    return Internal("rank 0 sent " + std::to_string(tensor.extents.size()) + " extents of '" +
                    tensor.name + "' for a group of " + std::to_string(size));
  }
  if (signature.kind == Kind::kVote || signature.shape.empty()) return {};
  if (is_gather) {
    size_t speaker = 0;
    while (speaker + 1 < size &&
           std::binary_search(tensor.joined.begin(), tensor.joined.end(), group->ranks[speaker]))
      ++speaker;
    signature.shape[0] = tensor.extents[speaker];
    return {};
  }
  signature.splits = tensor.extents;
  signature.shape[0] = std::accumulate(tensor.extents.begin(), tensor.extents.end(), int64_t{0});
  return {};
}

void Announcer::ApplyRejection(RejectMessage&& rejected, Agreement& agreement) {
  const TensorKey& key = rejected.key;
  // What is open of this name belongs to a later round than the one that this rank has refused.
  if (const auto refused = refused_.find(key); refused != refused_.end()) {
    if (--refused->second == 0) refused_.erase(refused);
    return;
  }
  int32_t token = kNoToken;
  bool was_open = false;
  if (const auto unnamed = unnamed_.find(key); unnamed != unnamed_.end()) {
    was_open = true;
    token = unnamed->second.token;
    unnamed_.erase(unnamed);
  }
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    Round& round = rounds_[static_cast<size_t>(found->second)];
    if (round.open != Open::kNo) {
      was_open = true;
      token = round.token;
      round.has_own = false;
    }
    round.open = Open::kNo;
  }
  if (was_open) {
    ++counters_.rejected;
    agreement.rejected.push_back(
        {key.name, key.group, std::move(rejected.why), key.sender, key.receiver, token});
    return;
  }
  const Group* group = FindGroup(key.group);
  const bool takes_part = key.is_pair() ? key.sender == rank_ || key.receiver == rank_
                                        : group != nullptr && group->is_member();
  if (!takes_part || !rejected.fails_late_members || has_joined_) return;
  if (failed_rounds_.size() < kFailedNamesMax)
    failed_rounds_[key.name].push_back({key, std::move(rejected.why)});
}

void Announcer::WriteCounters(JsonWriter& json) const {
  json.Member("cycles", counters_.cycles).Member("announced", counters_.announced);
  json.Member("announced_cached", counters_.announced_cached);
  json.Member("rejected", counters_.rejected).Member("evicted", counters_.evicted);
  json.Member("tensors_known", by_key_.size());
}

std::vector<std::string> Announcer::Waiting(int64_t now_us, int64_t older_than_us) const {
  std::vector<std::string> lines;
  const auto add = [&](const TensorKey& key, const Signature& own, int64_t open_us) {
    if (now_us - open_us < older_than_us) return;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f", static_cast<double>(now_us - open_us) * 1e-6);
    lines.push_back("'" + key.name + "' (" + std::string(Name(own.kind)) + " " + Describe(own) +
                    "): submitted on this rank " + seconds +
                    " s ago and not yet on every rank that takes part");
  };
  for (size_t id = 0; id < known_.size(); ++id)
    if (rounds_[id].open != Open::kNo) add(known_[id].key, known_[id].own, rounds_[id].open_us);
  for (const auto& [key, unnamed] : unnamed_) add(key, unnamed.own, unnamed.open_us);
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace rabit

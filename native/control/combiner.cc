#include "control/combiner.h"

#include <algorithm>
#include <utility>

namespace rabit {

Combiner::Combiner(int rank, const RankTree& tree, int64_t hold_us)
    : rank_(rank), hold_us_(hold_us), subtree_(tree.Subtree(rank)) {
  below_[rank] = RankSet(rank);
  done_[rank] = 0;
  for (int child : tree.children(rank)) {
    below_[child] = RankSet(tree.Subtree(child));
    done_[child] = 0;
  }
  members_below_[kWorld] = subtree_.count();
}

void Combiner::AddGroup(const Group& group) {
  members_below_[group.id] = RankSet(group.ranks).CountCommon(subtree_);
}

Status Combiner::OnMessage(int child, ConstBytes message, int64_t now_us) {
  const auto refuse = [child](const Status& why) {
    return Status(why.code(), "rank " + std::to_string(child) + ": " + why.message())
        .WithCulprit(child);
  };
  const Result<ControlType> type = TypeOf(message);
  if (!type.ok()) return refuse(type.status());
  const RankSet& below = below_.at(child);
  if (*type != ControlType::kBundle) {
    BundlePart part;
    // A child without ranks below it sends plain messages; they get the form of a part here, so
    // that one path handles both.
    part.last_rank = child;
    part.message.assign(message.begin(), message.end());
    const bool is_announcement = *type == ControlType::kAnnounce;
    if (is_announcement && below.count() > 1)
      // Ranks that the child forgot would be waited for forever.
      return refuse(Internal("it announces for itself alone, and has ranks below it"));
    if (!is_announcement && below.count() > 1) part.ranks = RankSet(child);
    const Status handled = OnPart(child, below, part, now_us);
    return handled.ok() ? handled : refuse(handled);
  }
  const Result<BundleMessage> bundle = DecodeBundle(message);
  if (!bundle.ok()) return refuse(bundle.status());
  // The credit of a bundle holds for the whole subtree of the child.
  UpdateCredit(child, bundle->buckets_done);
  for (const BundlePart& part : bundle->parts) {
    const Status handled = OnPart(child, below, part, now_us);
    if (!handled.ok()) return refuse(handled);
  }
  return {};
}

Status Combiner::OnPart(int child, const RankSet& below, const BundlePart& part, int64_t now_us) {
  if (!below.Contains(part.ranks) || !below.Contains(part.last_rank))
    return Internal("it speaks for ranks that are not below it in the tree");
  // Claims point to the set of ranks, so it must stay where it is until the parts are sent: below_
  // and sets_ do not move.
  const bool is_all = part.ranks.empty() || part.ranks.count() == below.count();
  const RankSet& ranks = is_all ? below : sets_.emplace_back(part.ranks);
  RABIT_ASSIGN_OR_RETURN(const ControlType type, TypeOf(part.message));
  if (type == ControlType::kAnnounce) {
    RABIT_ASSIGN_OR_RETURN(const AnnounceMessage message, DecodeAnnounce(part.message));
    const bool is_leaf = below.count() == 1;
    if (is_leaf) UpdateCredit(child, message.buckets_done);
    OnAnnounce(
        {ranks, message.seen_cycle, is_leaf ? message.seen_cycle : part.ids_cycle, part.last_rank},
        message, now_us);
    return {};
  }
  if (type != ControlType::kRefuse && type != ControlType::kAbandon && type != ControlType::kLost &&
      type != ControlType::kDigest && type != ControlType::kBackendFailed) {
    return Internal("it sent a message that only rank 0 sends");
  }
  // These are rare and mean something for one rank; combining them would save nothing.
  AppendRaw(ranks, part.message);
  return {};
}

void Combiner::OnOwn(const AnnounceMessage& message, int64_t now_us) {
  UpdateCredit(rank_, message.buckets_done);
  OnAnnounce({below_.at(rank_), message.seen_cycle, message.seen_cycle, rank_}, message, now_us);
}

void Combiner::OnOwnRefusal(const RefusalMessage& message) {
  std::vector<std::byte> bytes;
  Encode(message, bytes);
  AppendRaw(below_.at(rank_), std::move(bytes));
}

void Combiner::UpdateCredit(int child, const BucketCounts& buckets_done) {
  done_.at(child).RaiseTo(buckets_done);
}

void Combiner::OnAnnounce(const Source& from, const AnnounceMessage& message, int64_t now_us) {
  if (message.joins) {
    // Whom the others do not wait for any more is rank 0's business until all have joined.
    Flush();
    joined_.Add(from.ranks);
  }
  for (TensorId id : message.cached) OnCached(from, id, now_us);
  for (const VariablePart& part : message.variable) OnVariable(from, part, now_us);
  for (const Announcement::Entry& entry : message.full) OnFull(from, entry, now_us);
  if (message.joins) PartFor(from, false).message.joins = true;
  if (message.doubts) PartFor(from, false).message.doubts = true;
  if (message.wants_stop) OnStop(from.ranks, now_us);
}

// Null: the id means something else by now, and the ranks will announce the tensor again.
Combiner::Known* Combiner::Find(TensorId id, uint64_t ids_cycle) {
  if (id < 0 || static_cast<size_t>(id) >= known_.size()) return nullptr;
  Known& known = known_[static_cast<size_t>(id)];
  return known.key.name.empty() || known.named_cycle > ids_cycle ? nullptr : &known;
}

void Combiner::OnCached(const Source& from, TensorId id, int64_t now_us) {
  Known* const known = Find(id, from.ids_cycle);
  if (known == nullptr) return;
  Round& round = known->round;
  // Another rank has announced the tensor in full: whether that agrees with the id is for rank 0 to
  // decide.
  if (!round.full.empty()) FlushRound(id, round);
  if (known->key.is_pair() || !Holds(round, known->key.group, from, now_us)) {
    PartFor(from, false).message.cached.push_back(id);
    return;
  }
  // Parts stand at the places of their claims; an empty one says "as agreed".
  if (!round.parts.empty()) round.parts.emplace_back();
  if (IsComplete(round, known->key.group)) Release(id, round);
}

void Combiner::OnVariable(const Source& from, const VariablePart& part, int64_t now_us) {
  Known* const known = Find(part.id, from.ids_cycle);
  if (known == nullptr) return;
  Round& round = known->round;
  if (!round.full.empty()) FlushRound(part.id, round);
  if (!Holds(round, known->key.group, from, now_us)) {
    PartFor(from, false).message.variable.push_back(part);
    return;
  }
  round.parts.resize(round.claims.size() - 1);
  round.parts.push_back(part);
  if (IsComplete(round, known->key.group)) Release(part.id, round);
}

void Combiner::OnFull(const Source& from, const Announcement::Entry& entry, int64_t now_us) {
  const TensorKey key = KeyOf(entry.name, entry.signature, from.ranks.lowest());
  const auto found = by_key_.find(key);
  const TensorId id = found == by_key_.end() ? -1 : found->second;
  if (key.is_pair()) {
    PartFor(from, false).message.full.push_back(entry);
    return;
  }
  Round& round = id < 0 ? unnamed_[key] : known_[static_cast<size_t>(id)].round;
  // Only equal signatures may travel as one; rank 0 names the ranks of those that differ.
  const bool differs =
      !round.claims.empty() && (round.full.empty() || round.full[0].signature != entry.signature ||
                                round.full[0].data != entry.data);
  if (differs) FlushRound(id, round);
  if (!Holds(round, entry.signature.group, from, now_us)) {
    PartFor(from, false).message.full.push_back(entry);
    return;
  }
  if (round.full.empty()) round.full.push_back(entry);
  if (IsComplete(round, entry.signature.group)) Release(id, round);
}

int Combiner::MembersBelow(GroupId group) const {
  const auto found = members_below_.find(group);
  return found == members_below_.end() ? -1 : found->second;
}

bool Combiner::Holds(Round& round, GroupId group, const Source& from, int64_t now_us) {
  // A claim from before a rejection may belong to the round that failed: rank 0 knows.
  const bool is_late = from.seen_cycle < rejected_cycle_;
  if (is_late) return false;
  // The members of a group that is not known here cannot be counted, and a rank that has joined is
  // not missed: rank 0 decides.
  if (MembersBelow(group) < 0 || !joined_.empty()) round.passes = true;
  if (round.passes) return false;
  if (round.claims.empty()) CountHeld(now_us);
  round.claims.push_back({&from.ranks, from.seen_cycle, from.last_rank});
  round.announced += from.ranks.count();
  return true;
}

bool Combiner::IsComplete(const Round& round, GroupId group) const {
  return round.announced >= MembersBelow(group);
}

void Combiner::CountHeld(int64_t now_us) {
  if (held_++ == 0) first_held_us_ = now_us;
}

void Combiner::Forget(Round& round) {
  // held_ counts rounds, not ranks: the tick looks only whether anything is held.
  if (!round.claims.empty()) --held_;
  round.claims.clear();
  round.parts.clear();
  round.full.clear();
  round.announced = 0;
  round.passes = false;
}

void Combiner::OnStop(const RankSet& ranks, int64_t now_us) {
  if (stopped_.Contains(ranks) || stopping_.Contains(ranks)) return;
  if (stopping_.empty()) CountHeld(now_us);
  // Stops wait for each other, as tensors do, or a tree of thousands would send thousands of
  // messages at its end.
  stopping_.Add(ranks);
  RankSet all = stopped_;
  all.Add(stopping_);
  if (all.count() == subtree_.count() || !joined_.empty()) ReleaseStops();
}

void Combiner::OnAgreement(const AgreeMessage& message) {
  if (!message.rejected.empty()) {
    // What is held may belong to the rounds that have failed, and must reach rank 0 with the cycle
    // from before the rejection.
    Flush();
    rejected_cycle_ = message.cycle;
    for (const RejectMessage& rejected : message.rejected) {
      const auto found = by_key_.find(rejected.key);
      if (found != by_key_.end()) Forget(known_[static_cast<size_t>(found->second)].round);
      unnamed_.erase(rejected.key);
    }
  }
  cycle_ = message.cycle;
  const auto end = [this](TensorId id) {
    if (Known* const known = Find(id, cycle_)) Forget(known->round);
  };
  for (TensorId id : message.evicted) {
    Known* const known = Find(id, cycle_);
    if (known == nullptr) continue;
    // Who announced it by its number announces it again, in full; who did so in full does not.
    if (!known->round.full.empty()) FlushRound(id, known->round);
    Forget(known->round);
    by_key_.erase(known->key);
    *known = {};
  }
  for (TensorId id : message.plain) end(id);
  for (const ReadyReference& ready : message.references) end(ready.id);
  for (const Definition& definition : message.definitions) {
    const auto index = static_cast<size_t>(definition.ready.id);
    if (index >= known_.size()) known_.resize(index + 1);
    Known& known = known_[index];
    if (known.key.name.empty()) {
      known.key = definition.key;
      // A rank that announces this id before it has read this cycle means another tensor.
      known.named_cycle = message.cycle;
      by_key_[known.key] = definition.ready.id;
      if (const auto unnamed = unnamed_.find(known.key); unnamed != unnamed_.end()) {
        Forget(unnamed->second);
        unnamed_.erase(unnamed);
      }
    }
    Forget(known.round);
  }
  if (message.last_joined >= 0) joined_.Clear();
}

void Combiner::OnTick(int64_t now_us) {
  if (now_us >= next_tick_us()) Flush();
}

}  // namespace rabit

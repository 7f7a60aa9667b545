// What a combiner tells its parent.
#include <algorithm>
#include <utility>

#include "control/combiner.h"

namespace rabit {

void Combiner::Release(TensorId id, Round& round) {
  RankSet ranks;
  Claim all;
  if (round.full.empty() && round.parts.empty()) {
    ReleaseCached(id, round);
    // A rank has claimed twice: rank 0 must see both, to refuse the second.
  } else if (!Unite(round.claims, ranks, all)) {
    return FlushRound(id, round);
  } else if (!round.full.empty()) {
    PartFor({ranks, all.seen_cycle, cycle_, all.last_rank}, true)
        .message.full.push_back(std::move(round.full[0]));
  } else {
    ReleaseVariable(id, round);
  }
  Forget(round);
  // Whatever comes for this round afterwards cannot wait for company any more.
  round.passes = true;
}

void Combiner::ReleaseCached(TensorId id, const Round& round) {
  const std::vector<Claim>& claims = round.claims;
  // In a steady step all tensors come from the same ranks, and comparing pointers spares uniting
  // sets for each of them.
  const bool is_alike = last_claims_.size() == claims.size() &&
                        std::equal(claims.begin(), claims.end(), last_claims_.begin(),
                                   [](const Claim& a, const RankSet* b) { return a.ranks == b; });
  if (!is_alike || last_part_ < mergeable_from_ || last_part_ >= out_.size()) {
    RankSet ranks;
    Claim all;
    if (!Unite(claims, ranks, all)) {
      for (const Claim& claim : claims) {
        PartFor({*claim.ranks, claim.seen_cycle, cycle_, claim.last_rank}, false)
            .message.cached.push_back(id);
      }
      return;
    }
    last_part_ = static_cast<size_t>(
        &PartFor({ranks, all.seen_cycle, cycle_, all.last_rank}, true) - out_.data());
    last_claims_.clear();
    for (const Claim& claim : claims) last_claims_.push_back(claim.ranks);
  }
  AnnounceMessage& message = out_[last_part_].message;
  for (const Claim& claim : claims)
    // The lowest cycle is the safe one: rank 0 takes it as what all of them have read.
    message.seen_cycle = std::min(message.seen_cycle, claim.seen_cycle);
  message.cached.push_back(id);
}

// Ranks with a part like the first one's speak together, the others for themselves.
void Combiner::ReleaseVariable(TensorId id, const Round& round) {
  const auto is_like = [&](const VariablePart& a, const VariablePart& b) {
    return a.id == b.id && a.rows == b.rows && a.splits == b.splits && a.data == b.data;
  };
  const auto part_of = [&](size_t i) {
    return i < round.parts.size() ? round.parts[i] : VariablePart{};
  };
  const auto say = [&](const RankSet& ranks, const Claim& claim, const VariablePart& part) {
    AnnounceMessage& message =
        PartFor({ranks, claim.seen_cycle, cycle_, claim.last_rank}, true).message;
    if (part.id < 0) {
      message.cached.push_back(id);
    } else {
      message.variable.push_back(part);
    }
  };
  const VariablePart first = part_of(0);
  std::vector<Claim> alike;
  for (size_t i = 0; i < round.claims.size(); ++i) {
    if (is_like(part_of(i), first)) {
      alike.push_back(round.claims[i]);
    } else {
      say(*round.claims[i].ranks, round.claims[i], part_of(i));
    }
  }
  RankSet ranks;
  Claim all;
  // Release has found that no rank claims twice, so this cannot fail.
  (void)Unite(alike, ranks, all);
  say(ranks, all, first);
}

bool Combiner::Unite(const std::vector<Claim>& claims, RankSet& ranks, Claim& all) const {
  all = claims.back();
  int count = 0;
  for (const Claim& claim : claims) {
    ranks.Add(*claim.ranks);
    count += claim.ranks->count();
    all.seen_cycle = std::min(all.seen_cycle, claim.seen_cycle);
  }
  // A set that is smaller than the sum of its parts has a rank in two of them.
  return count == ranks.count();
}

void Combiner::ReleaseStops() {
  if (stopping_.empty()) return;
  Outgoing& outgoing = Append(stopping_, stopping_.lowest());
  outgoing.message.wants_stop = true;
  // Nothing after the stop may be joined with a message before it: the order of the two decides
  // what the stop answers for.
  mergeable_from_ = out_.size();
  stopped_.Add(stopping_);
  stopping_.Clear();
  --held_;
}

void Combiner::FlushRound(TensorId id, Round& round) {
  for (size_t i = 0; i < round.claims.size(); ++i) {
    const Claim& claim = round.claims[i];
    AnnounceMessage& message =
        PartFor({*claim.ranks, claim.seen_cycle, cycle_, claim.last_rank}, false).message;
    if (!round.full.empty()) {
      message.full.push_back(round.full[0]);
    } else if (i < round.parts.size() && round.parts[i].id >= 0) {
      message.variable.push_back(round.parts[i]);
    } else {
      message.cached.push_back(id);
    }
  }
  Forget(round);
  round.passes = true;
}

void Combiner::Flush() {
  if (held_ == 0) return;
  for (size_t id = 0; id < known_.size(); ++id) {
    Round& round = known_[id].round;
    if (!round.claims.empty()) FlushRound(static_cast<TensorId>(id), round);
  }
  for (auto& [key, round] : unnamed_) {
    if (!round.claims.empty()) FlushRound(-1, round);
  }
  ReleaseStops();
}

Combiner::Outgoing& Combiner::PartFor(const Source& from, bool is_merged) {
  std::unordered_map<int, size_t>& by_lowest = is_merged ? merged_part_ : exact_part_;
  const int lowest = from.ranks.lowest();
  const auto found = by_lowest.find(lowest);
  // The index may be from before the last TakeUp, when out_ was longer.
  if (found != by_lowest.end() && found->second >= mergeable_from_ && found->second < out_.size()) {
    Outgoing& outgoing = out_[found->second];
    const uint64_t seen_cycle = outgoing.message.seen_cycle;
    const bool fits = outgoing.is_merged == is_merged && outgoing.part.ranks == from.ranks &&
                      outgoing.part.ids_cycle == from.ids_cycle &&
                      (is_merged || seen_cycle == from.seen_cycle);
    if (fits) {
      outgoing.message.seen_cycle = std::min(seen_cycle, from.seen_cycle);
      return outgoing;
    }
  }
  by_lowest[lowest] = out_.size();
  Outgoing& outgoing = Append(from.ranks, from.last_rank);
  outgoing.is_merged = is_merged;
  outgoing.part.ids_cycle = from.ids_cycle;
  outgoing.message.seen_cycle = from.seen_cycle;
  return outgoing;
}

Combiner::Outgoing& Combiner::Append(const RankSet& ranks, int last_rank) {
  Outgoing& outgoing = out_.emplace_back();
  outgoing.part.ranks = ranks;
  // The wire has no negative numbers.
  outgoing.part.last_rank = std::max(last_rank, 0);
  return outgoing;
}

// What comes after it must not be said before it.
void Combiner::AppendRaw(const RankSet& ranks, std::vector<std::byte> message) {
  Outgoing& outgoing = Append(ranks, ranks.lowest());
  outgoing.part.message = std::move(message);
  outgoing.is_raw = true;
  mergeable_from_ = out_.size();
}

bool Combiner::TakeUp(std::vector<std::byte>& out) {
  BucketCounts done = done_.begin()->second;
  for (const auto& [child, each] : done_) done.LowerTo(each);
  // Claims point into sets_, so it is emptied only when nothing is held.
  if (held_ == 0 && out_.empty()) sets_.clear();
  if (out_.empty() && told_done_.Covers(done)) return false;
  // Counts only grow. One that went back would take away credit that rank 0 has given already.
  told_done_.RaiseTo(done);
  BundleMessage bundle;
  bundle.buckets_done = told_done_;
  for (Outgoing& each : out_) {
    if (!each.is_raw) {
      std::vector<TensorId>& ids = each.message.cached;
      if (!std::is_sorted(ids.begin(), ids.end())) std::sort(ids.begin(), ids.end());
      Encode(each.message, each.part.message);
    }
    // An empty set says "all below", which spares the set in the message of a steady step.
    if (each.part.ranks == subtree_) each.part.ranks = {};
    bundle.parts.push_back(std::move(each.part));
  }
  Encode(bundle, out);
  out_.clear();
  merged_part_.clear();
  exact_part_.clear();
  mergeable_from_ = 0;
  last_claims_.clear();
  if (held_ == 0) sets_.clear();
  return true;
}

}  // namespace rabit

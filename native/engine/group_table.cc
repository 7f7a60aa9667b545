#include "engine/group_table.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace rabit {

GroupTable::GroupTable(int rank, int size) : rank_(rank), size_(size) {
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  Add(std::move(all));
}

Result<std::vector<int>> GroupTable::Normalize(std::span<const int> ranks) const {
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  const std::string where = "a group on rank " + std::to_string(rank_);
  if (sorted.empty()) {
    return InvalidArgument(where + " has no ranks: a collective needs at least one; pass ranks");
  }
  if (sorted.front() < 0 || sorted.back() >= size_) {
    const int wrong = sorted.front() < 0 ? sorted.front() : sorted.back();
    return InvalidArgument(where + " names rank " + std::to_string(wrong) +
                           ": the job has ranks 0 to " + std::to_string(size_ - 1) +
                           "; correct the list");
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    return InvalidArgument(where + " names rank " + std::to_string(*twice) +
                           " twice: a rank is a member once; correct the list");
  }
  return sorted;
}

std::shared_ptr<const Group> GroupTable::Add(std::vector<int> ranks) {
  MutexLock lock(mutex_);
  auto group = std::make_shared<Group>();
  // Ids are never given again: a message about a removed group cannot be taken for one about
  // another.
  group->id = next_id_++;
  group->ranks = std::move(ranks);
  group->my_index = group->IndexOf(rank_);
  groups_[group->id] = group;
  return group;
}

Result<std::shared_ptr<const Group>> GroupTable::Find(GroupId group) const {
  MutexLock lock(mutex_);
  auto found = groups_.find(group);
  if (found != groups_.end()) return found->second;
  std::string known;
  for (const auto& [id, unused] : groups_)
    known += (known.empty() ? "" : ", ") + std::to_string(id);
  return InvalidArgument("rank " + std::to_string(rank_) + ": there is no group " +
                         std::to_string(group) +
                         ": it was never added, or removed; the groups "
                         "are " +
                         known);
}

void GroupTable::Forget(GroupId group) {
  MutexLock lock(mutex_);
  removed_.erase(group);
}

std::shared_ptr<const Group> GroupTable::FindEver(GroupId group) const {
  MutexLock lock(mutex_);
  if (auto found = groups_.find(group); found != groups_.end()) return found->second;
  auto removed = removed_.find(group);
  return removed == removed_.end() ? nullptr : removed->second;
}

void GroupTable::Stage(const std::string& vote, GroupId group,
                       std::shared_ptr<const TreePlan> plan) {
  MutexLock lock(mutex_);
  staged_[vote] = {group, false, std::move(plan)};
}

void GroupTable::StageRemoval(const std::string& vote, GroupId group) {
  MutexLock lock(mutex_);
  staged_[vote] = {group, true, nullptr};
}

Result<std::shared_ptr<const Group>> GroupTable::TakeForce(const ReadyTensor& vote) {
  const std::shared_ptr<const Group> nothing;
  MutexLock lock(mutex_);
  const auto found = staged_.find(vote.name);
  if (found == staged_.end()) return nothing;
  const Staged staged = std::move(found->second);
  staged_.erase(found);
  if (!vote.joined.empty()) {
    return Without(vote.joined.front(), (staged.removes ? "group " : "the plan of group ") +
                                            std::to_string(staged.group));
  }
  const auto group = groups_.find(staged.group);
  if (group == groups_.end() || vote.extents[0] == 0) return nothing;
  if (staged.removes) {
    // What was agreed before the removal still runs and finds the group here, until Forget.
    return removed_.insert(groups_.extract(group)).position->second;
  }
  // A new object instead of a change: lanes hold the old one for their buckets, which were agreed
  // without the plan.
  auto planned = std::make_shared<Group>(*group->second);
  planned->plan = staged.plan;
  group->second = std::move(planned);
  return nothing;
}

Status GroupTable::Without(int joined, const std::string& what) {
  return InvalidArgument(
             what + ": rank " + std::to_string(joined) +
             " has called join, and groups and plans change only where every rank takes "
             "part; call it before any rank joins, or after all have")
      .WithCulprit(joined);
}

bool GroupTable::has_added() const {
  MutexLock lock(mutex_);
  return groups_.size() > 1;
}

}  // namespace rabit

// GroupTable: the groups that collectives may name.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/group.h"
#include "base/mutex.h"
#include "base/result.h"
#include "control/agreement.h"

namespace rabit {

// Thread-safe.  Ids are given in order, so ranks that add the same groups in the same order agree.
class GroupTable {
 public:
  GroupTable(int rank, int size);  // with the group of all ranks

  // Sorted, without duplicates, inside the job; else kInvalidArgument.
  Result<std::vector<int>> Normalize(std::span<const int> ranks) const;
  std::shared_ptr<const Group> Add(std::vector<int> ranks);
  // kInvalidArgument names the groups there are.
  Result<std::shared_ptr<const Group>> Find(GroupId group) const;
  // Nothing that was agreed before its removal is left.
  void Forget(GroupId group);
  // Finds removed groups too: what was agreed before the removal still runs.  Null: never added, or
  // forgotten.
  std::shared_ptr<const Group> FindEver(GroupId group) const;
  // Keeps a plan of a group until the vote of this name has been taken; null: no plan any more.
  void Stage(const std::string& vote, GroupId group, std::shared_ptr<const TreePlan> plan);
  // Keeps the removal of a group until the vote of this name has been taken.
  void StageRemoval(const std::string& vote, GroupId group);
  // A vote has been taken.  If a plan waits for it, and some rank has not voted 0, whoever finds the
  // group from now on finds the plan with it; if a removal does, nobody finds the group any more,
  // which is returned.  What waits for it changes nothing while a rank takes no part.
  Result<std::shared_ptr<const Group>> TakeForce(const ReadyTensor& vote);
  // Of what every rank takes part in or none: `joined` has called join.
  static Status Without(int joined, const std::string& what);
  // Whether there are others than the group of all ranks.
  bool has_added() const;

 private:
  const int rank_;
  const int size_;
  mutable Mutex mutex_;
  GroupId next_id_ RABIT_GUARDED_BY(mutex_) = kWorld;
  std::map<GroupId, std::shared_ptr<const Group>> groups_ RABIT_GUARDED_BY(mutex_);
  std::map<GroupId, std::shared_ptr<const Group>> removed_ RABIT_GUARDED_BY(mutex_);
  struct Staged {
    GroupId group;
    bool removes;
    std::shared_ptr<const TreePlan> plan;
  };
  std::map<std::string, Staged> staged_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

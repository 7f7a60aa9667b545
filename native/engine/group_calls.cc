#include "engine/group_calls.h"

#include <algorithm>
#include <utility>

namespace rabit {

Result<GroupId> GroupCalls::Add(std::span<const int> ranks, Deadline deadline) {
  RABIT_ASSIGN_OR_RETURN(std::vector<int> mine, state_->groups.Normalize(ranks));
  // Groups are added one after another: each rank numbers them in that order.
  MutexLock lock(mutex_);
  if (pending_) {
    // The other ranks may have added it, so it comes first here as well.
    const bool is_same = pending_->ranks == mine;
    Result<GroupId> finished = Finish(deadline);
    if (is_same || pending_) return finished;
  }
  RABIT_RETURN_IF_ERROR(Begin(std::move(mine)));
  return Finish(deadline);
}

Status GroupCalls::Begin(std::vector<int> mine) {
  // Every rank says who it is and how many ranks it lists, so that the lists can be told apart.
  auto message = std::make_unique<std::vector<int32_t>>(mine.begin(), mine.end());
  message->insert(message->begin(), {state_->parts.rank, static_cast<int32_t>(mine.size())});
  const auto count = static_cast<int64_t>(message->size());
  Request request;
  request.name = "rabit.add_group";
  request.signature.kind = Kind::kAllgather;
  request.signature.dtype = DType::kInt32;
  request.signature.shape = {count};
  request.input = TensorView{message->data(), count, DType::kInt32, {}};
  Handle handle;
  RABIT_RETURN_IF_ERROR(engine_.Submit(std::span(&request, 1), std::span(&handle, 1)));
  pending_ = Pending{std::move(mine), std::move(message), handle, nullptr, std::thread(), Handle{}};
  return Status();
}

Result<GroupId> GroupCalls::Finish(Deadline deadline) {
  if (pending_->definition == nullptr) RABIT_RETURN_IF_ERROR(Agree(deadline));
  if (pending_->vote == Handle{}) RABIT_RETURN_IF_ERROR(Take(deadline));
  const Handle vote = pending_->vote;
  const GroupId group = pending_->definition->group->id;
  const std::optional<Status> end = EndOf(vote, deadline);
  if (!end) {
    return TimedOut(Where() + ": add_group: group " + std::to_string(group) +
                    " is agreed, but not every rank has taken it yet: call it once more with the " +
                    "same ranks to continue waiting");
  }
  const std::vector<int32_t> bits = ValuesOf(vote);
  engine_.Release(vote);
  if (!end->ok()) {
    // A rank that gave up waiting for this group has joined without its vote.  It votes in its next
    // call, and so do the others: a vote of its own would have no partner.
    pending_->vote = Handle{};
    return *end;
  }
  const Status taken = pending_->definition->status;
  pending_.reset();
  if (!taken.ok()) return taken;
  if (bits[0] == 0) return group;
  return Aborted(Where() + ": add_group: another rank could not take group " +
                 std::to_string(group) + "; see what that rank reports");
}

// Waits until this rank has taken the group, and votes: 1 if it could not, and then no rank keeps
// the group.
Status GroupCalls::Take(Deadline deadline) {
  Definition& definition = *pending_->definition;
  const std::string group = std::to_string(definition.group->id);
  if (!definition.done.Wait([&] { return definition.is_done.load(); }, deadline)) {
    return TimedOut(Where() + ": add_group: group " + group +
                    " is agreed, but this rank has not taken it yet: call it once more with the " +
                    "same ranks to continue waiting");
  }
  if (pending_->definer.joinable()) pending_->definer.join();
  const std::string vote = "rabit.add_group." + group + ".taken";
  state_->groups.StageRemoval(vote, definition.group->id);
  RABIT_ASSIGN_OR_RETURN(pending_->vote, SubmitVote(vote, definition.status.ok() ? 0 : 1));
  return Status();
}

Result<Handle> GroupCalls::SubmitVote(const std::string& name, int64_t bits) {
  Request request;
  request.name = name;
  request.signature.kind = Kind::kVote;
  request.signature.dtype = DType::kInt64;
  request.input = TensorView{&bits, 1, DType::kInt64, {}};  // is read at once
  Handle handle;
  RABIT_RETURN_IF_ERROR(engine_.Submit(std::span(&request, 1), std::span(&handle, 1)));
  return handle;
}

// Waits until every rank has called, and has a thread define the group.
Status GroupCalls::Agree(Deadline deadline) {
  const Handle handle = pending_->handle;
  const std::optional<Status> end = EndOf(handle, deadline);
  if (!end) {
    return TimedOut(Where() +
                    ": add_group: not every rank has called it yet; call it on every rank, and "
                    "here once more with the same ranks to continue waiting");
  }
  Status status = *end;
  const std::vector<int32_t> all = ValuesOf(handle);
  engine_.Release(handle);
  if (status.ok()) status = CheckSameRanks(pending_->ranks, all);
  if (!status.ok()) {
    pending_.reset();
    return status;
  }
  // Shared with the thread below, which may go on after this call has given up, and even after this
  // object has gone.
  const auto definition = std::make_shared<Definition>();
  definition->group = state_->groups.Add(pending_->ranks);
  pending_->definition = definition;
  pending_->definer = std::thread([state = state_, loop = loop_, definition] {
    Define(*state, *loop, *definition);
    definition->is_done.store(true);
    definition->done.Notify();
  });
  return Status();
}

// On a thread of its own: backends may wait for other ranks, which the engine thread never does.
void GroupCalls::Define(EngineState& state, EngineLoop& loop, Definition& definition) {
  definition.status = TakeIntoBackends(state, *definition.group);
  if (!definition.status.ok()) return;
  const bool is_taken = loop.TellAndWait(
      [group = definition.group](EngineCore& core) { core.AddGroup(*group); }, Deadline::max());
  if (is_taken) return;
  definition.status =
      state.failure.has_verdict()
          ? state.failure.verdict()
          : Aborted("rank " + std::to_string(state.parts.rank) +
                    ": the group was not added: the engine is stopping; add it earlier");
}

Status GroupCalls::TakeIntoBackends(EngineState& state, const Group& group) {
  for (size_t i = 0; i < state.parts.backends.size(); ++i) {
    const FailureScope scope = state.ScopeOf(static_cast<int32_t>(i));
    // A backend that has failed needs no groups; the others go on.
    if (!state.failure.verdict_on(scope).ok()) continue;
    // Every rank takes its backends in the same order; a backend may wait here for the same backend
    // of other ranks.
    const Status added = state.parts.backends[i]->AddGroup(group);
    if (added.ok()) continue;
    if (scope == kWholeEngine) return added;
    // The group is one of all other backends as well.
    state.failure.Suspect(scope, added);
  }
  return Status();
}

GroupCalls::~GroupCalls() {
  MutexLock lock(mutex_);
  if (!pending_ || !pending_->definer.joinable()) return;
  if (pending_->definition->is_done.load()) {
    pending_->definer.join();
  } else {
    pending_->definer.detach();  // it holds what it uses
  }
}

Status GroupCalls::CheckSameRanks(const std::vector<int>& mine,
                                  std::span<const int32_t> all) const {
  int next = 0;  // a rank that has joined has no list
  for (size_t at = 0; at < all.size(); ++next) {
    const int rank = all[at];
    if (rank != next) break;
    const auto theirs = all.subspan(at + 2, static_cast<size_t>(all[at + 1]));
    at += theirs.size() + 2;
    if (std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end())) continue;
    std::string here, there;
    for (int rank_here : mine) here += " " + std::to_string(rank_here);
    for (int rank_there : theirs) there += " " + std::to_string(rank_there);
    return Mismatch("add_group on rank " + std::to_string(state_->parts.rank) +
                    ": the ranks differ:" + here + " here," + there + " on rank " +
                    std::to_string(rank) +
                    ". Every rank must add the same groups in the same order")
        .WithCulprit(rank);
  }
  if (next == state_->parts.size) return Status();
  return GroupTable::Without(next, "add_group on rank " + std::to_string(state_->parts.rank));
}

Status GroupCalls::Remove(GroupId group, Deadline deadline) {
  if (group == kWorld) {
    return InvalidArgument(Where() +
                           ": group 0 cannot be removed: it is the group of all ranks; remove only "
                           "groups that were added");
  }
  RABIT_ASSIGN_OR_RETURN(const std::shared_ptr<Removal> removal, BeginRemoval(group));
  const std::optional<Status> end = EndOf(removal->vote, deadline);
  MutexLock lock(removals_mutex_);
  // Two threads may have waited for one removal; it ends once, and alike for both.
  if (removal->end) return *removal->end;
  if (!end) {
    return TimedOut(
        Where() + ": remove_group: not every rank has called it yet; call it on every " +
        "rank, and here once more with group " + std::to_string(group) + " to continue waiting");
  }
  removal->end = *end;
  removals_.erase(group);
  engine_.Release(removal->vote);
  return *end;
}

Result<std::shared_ptr<GroupCalls::Removal>> GroupCalls::BeginRemoval(GroupId group) {
  MutexLock lock(removals_mutex_);
  if (const auto begun = removals_.find(group); begun != removals_.end()) return begun->second;
  RABIT_RETURN_IF_ERROR(state_->groups.Find(group).status());
  const std::string name = "rabit.remove_group." + std::to_string(group);
  // Staged before the vote is submitted, whose agreement may come at once.
  state_->groups.StageRemoval(name, group);
  RABIT_ASSIGN_OR_RETURN(const Handle vote, SubmitVote(name, 1));
  // A later call waits for the same vote: a second one would have no partner on ranks that are
  // through.
  return removals_[group] = std::make_shared<Removal>(Removal{vote, std::nullopt});
}

std::optional<Status> GroupCalls::EndOf(Handle handle, Deadline deadline) const {
  (void)engine_.Wait(handle, deadline);
  const Result<bool> is_done = engine_.IsDone(handle);
  if (is_done.ok() && !*is_done) return std::nullopt;
  // What it has ended with, also if that came just after the deadline.
  return engine_.Wait(handle, deadline);
}

std::vector<int32_t> GroupCalls::ValuesOf(Handle handle) const {
  const Result<HandleOutput> output = engine_.Output(handle);
  if (!output.ok() || output->view.data == nullptr) return {};
  const auto* data = static_cast<const int32_t*>(output->view.data);
  return {data, data + output->view.count};
}

}  // namespace rabit

#include "engine/group_calls.h"

#include <algorithm>

namespace rabit {

Result<GroupId> GroupCalls::Add(std::span<const int> ranks, Deadline deadline) {
  RABIT_ASSIGN_OR_RETURN(std::vector<int> mine, state_->groups.Normalize(ranks));
  MutexLock lock(mutex_);
  if (pending_) {
    // The other ranks have counted it, so it comes first here as well.
    const bool is_same = pending_->ranks == mine;
    Result<GroupId> finished = Finish(deadline);
    if (is_same || pending_) return finished;
  }
  RABIT_RETURN_IF_ERROR(Begin(std::move(mine)));
  return Finish(deadline);
}

Status GroupCalls::Begin(std::vector<int> mine) {
  // Every rank sends its number of ranks first, so that the lists can be told apart.
  auto message = std::make_unique<std::vector<int32_t>>(mine.begin(), mine.end());
  message->insert(message->begin(), static_cast<int32_t>(mine.size()));
  const auto count = static_cast<int64_t>(message->size());
  Request request;
  request.name = "rabit.add_group." + std::to_string(calls_);
  request.signature.kind = Kind::kAllgather;
  request.signature.dtype = DType::kInt32;
  request.signature.shape = {count};
  request.input = TensorView{message->data(), count, DType::kInt32, {}};
  Handle handle;
  RABIT_RETURN_IF_ERROR(engine_.Submit(std::span(&request, 1), std::span(&handle, 1)));
  ++calls_;
  pending_ = Pending{std::move(mine), std::move(message), handle};
  return Status();
}

Result<GroupId> GroupCalls::Finish(Deadline deadline) {
  const Handle handle = pending_->handle;
  Status status = engine_.Wait(handle, deadline);
  if (const Result<bool> is_done = engine_.IsDone(handle); is_done.ok() && !*is_done) {
    return TimedOut(Where() +
                    ": add_group: not every rank has called it yet; call it on every rank, and "
                    "here once more with the same ranks to go on waiting");
  }
  Pending pending = std::move(*pending_);
  pending_.reset();
  const std::vector<int32_t> all = status.ok() ? ValuesOf(handle) : std::vector<int32_t>();
  engine_.Release(handle);
  if (!status.ok()) return status;
  RABIT_RETURN_IF_ERROR(CheckSameRanks(pending.ranks, all));
  return Define(state_->groups.Add(std::move(pending.ranks)), deadline);
}

Result<GroupId> GroupCalls::Define(const std::shared_ptr<const Group>& group, Deadline deadline) {
  auto status = std::make_shared<Status>();
  const bool is_done = loop_.TellAndWait(
      [state = state_, group, status](EngineCore& core) {
        core.AddGroup(*group);
        for (size_t i = 0; i < state->parts.backends.size() && status->ok(); ++i) {
          const FailureScope scope = state->ScopeOf(static_cast<int32_t>(i));
          if (!state->failure.verdict_on(scope).ok()) continue;
          const Status added = state->parts.backends[i]->AddGroup(*group);
          // The group is one of all other backends as well.
          if (!added.ok() && scope != kWholeEngine) state->failure.Suspect(scope, added);
          if (scope == kWholeEngine) *status = added;
        }
      },
      deadline);
  if (!is_done) {
    if (state_->failure.has_verdict()) return state_->failure.verdict();
    if (std::chrono::steady_clock::now() >= deadline) {
      return TimedOut(Where() + ": group " + std::to_string(group->id) +
                      " is agreed, but this engine had no time to take it; allow more time");
    }
    return Aborted(Where() + ": the group was not added: the engine is stopping; add it earlier");
  }
  if (!status->ok()) return *status;
  return group->id;
}

Status GroupCalls::CheckSameRanks(const std::vector<int>& mine,
                                  std::span<const int32_t> all) const {
  size_t at = 0;
  for (int rank = 0; at < all.size(); ++rank) {
    const auto length = static_cast<size_t>(all[at]);
    const auto theirs = all.subspan(at + 1, length);
    at += length + 1;
    if (std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end())) continue;
    std::string here, there;
    for (int each : mine) here += " " + std::to_string(each);
    for (int each : theirs) there += " " + std::to_string(each);
    return Mismatch("add_group on rank " + std::to_string(state_->parts.rank) +
                    ": the ranks differ:" + here + " here," + there + " on rank " +
                    std::to_string(rank) +
                    ". Every rank must add the same groups in the same order")
        .WithCulprit(rank);
  }
  return Status();
}

Status GroupCalls::Remove(GroupId group, Deadline deadline) {
  RABIT_ASSIGN_OR_RETURN(std::shared_ptr<const Group> found, state_->groups.Find(group));
  if (group == kWorld) return state_->groups.Remove(group);  // refuses
  MutexLock lock(mutex_);
  Request request;
  request.name = "rabit.remove_group." + std::to_string(group);
  request.signature.kind = Kind::kBarrier;
  Handle handle;
  RABIT_RETURN_IF_ERROR(engine_.Submit(std::span(&request, 1), std::span(&handle, 1)));
  const Status status = engine_.Wait(handle, deadline);
  engine_.Release(handle);
  if (!status.ok()) return status;
  return state_->groups.Remove(group);
}

std::vector<int32_t> GroupCalls::ValuesOf(Handle handle) const {
  const Result<HandleOutput> output = engine_.Output(handle);
  if (!output.ok() || output->view.data == nullptr) return {};
  const auto* data = static_cast<const int32_t*>(output->view.data);
  return {data, data + output->view.count};
}

}  // namespace rabit

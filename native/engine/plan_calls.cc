#include "engine/plan_calls.h"

#include <cstring>
#include <utility>

#include "base/sha256.h"

namespace rabit {

Status PlanCalls::Set(GroupId number, std::string_view text, Deadline deadline) {
  RABIT_ASSIGN_OR_RETURN(const std::shared_ptr<const Group> group, state_.groups.Find(number));
  const std::string where = "set_plan on rank " + std::to_string(state_.parts.rank);
  if (!group->is_member()) {
    return InvalidArgument(where + ": this rank is not in group " + std::to_string(number) +
                           "; call it on the ranks of the group");
  }
  // It is held while this thread waits for other ranks: there is one plan of a group on its way.
  MutexLock lock(mutex_);
  if (unsure_.contains(number)) {
    return InvalidArgument(where + ": not every rank took an earlier plan of group " +
                           std::to_string(number) + " in time, so ranks may follow different " +
                           "ones; start the job again");
  }
  const std::string name = "rabit.plan." + std::to_string(number);
  RABIT_ASSIGN_OR_RETURN(const bool is_whole, Compare(*group, text, name, deadline));
  // All ranks of the group read the same text, and succeed or fail alike.  Where one has joined,
  // the vote says so to the others, whatever they were given.
  std::shared_ptr<const TreePlan> plan;
  if (is_whole && !text.empty()) {
    Result<std::shared_ptr<const TreePlan>> parsed = TreePlan::Parse(text, group->size());
    if (!parsed.ok()) return parsed.status().Annotated(where);
    plan = *std::move(parsed);
  }
  const std::string vote = name + ".force";
  // Staged before the vote is submitted: the engine thread takes the plan into force with the
  // agreement of the vote, which may come at once.
  state_.groups.Stage(vote, number, std::move(plan));
  Request request;
  request.name = vote;
  request.signature.kind = Kind::kVote;
  request.signature.group = number;
  return RunOwn(std::move(request), 1, deadline, nullptr);
}

Result<bool> PlanCalls::Compare(const Group& group, std::string_view text, const std::string& name,
                                Deadline deadline) {
  const Digest digest = Sha256Of(std::as_bytes(std::span(text)));
  int64_t mine = 0;
  std::memcpy(&mine, digest.data(), sizeof mine);
  Request request;
  request.name = name;
  request.signature.kind = Kind::kAllgather;
  request.signature.group = group.id;
  std::vector<int64_t> all;
  RABIT_RETURN_IF_ERROR(RunOwn(std::move(request), mine, deadline, &all));
  if (all.size() != group.ranks.size()) return false;
  for (size_t position = 0; position < all.size(); ++position) {
    if (all[position] == mine) continue;
    const int rank = group.ranks[position];
    return Mismatch("set_plan on rank " + std::to_string(state_.parts.rank) + ": rank " +
                    std::to_string(rank) + " has another plan than this rank (" +
                    std::to_string(text.size()) +
                    " bytes here). Every rank of the group needs the same plan: copy one plan "
                    "file to all hosts")
        .WithCulprit(rank);
  }
  return true;
}

Status PlanCalls::RunOwn(Request request, int64_t input, Deadline deadline,
                         std::vector<int64_t>* values) {
  // After a timeout the request is still in flight and reads its input, which therefore stays as
  // long as this object.
  inputs_.push_back(input);
  const GroupId group = request.signature.group;
  request.signature.dtype = DType::kInt64;
  request.signature.shape = {1};
  request.input = TensorView{&inputs_.back(), 1, DType::kInt64, {}};
  Handle handle;
  RABIT_RETURN_IF_ERROR(engine_.Submit(std::span(&request, 1), std::span(&handle, 1)));
  const Status status = engine_.Wait(handle, deadline);
  if (status.ok() && values != nullptr) {
    const Result<HandleOutput> output = engine_.Output(handle);
    if (output.ok() && output->view.data != nullptr) {
      const auto* const data = static_cast<const int64_t*>(output->view.data);
      values->assign(data, data + output->view.count);
    }
  }
  engine_.Release(handle);
  if (status.code() != Code::kTimedOut) return status;
  // The other ranks may yet take the plan.
  unsure_.insert(group);
  return TimedOut("set_plan on rank " + std::to_string(state_.parts.rank) +
                  ": not every rank of the group has called it in time; call it on every rank, and "
                  "start the job again");
}

}  // namespace rabit

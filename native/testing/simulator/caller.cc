#include "testing/simulator/caller.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/kind.h"

namespace rabit::testing {
namespace {

using GroupStep = Operation::GroupStep;

constexpr uint64_t kJoinHandle = UINT64_MAX;
constexpr size_t kInputs = 64;
// Submissions of ranks differ in order by about so much.
constexpr size_t kDisorder = 6;

Handle HandleOf(int index, int round) {
  return {(static_cast<uint64_t>(index) << 16 | static_cast<uint64_t>(round)) + 1};
}

}  // namespace

Caller::Caller(const Options& options, const Program& program, VirtualTime& time, Dice& dice,
               GroupTable& groups, CallerPort& port)
    : options_(options),
      program_(program),
      time_(time),
      dice_(dice),
      groups_(groups),
      port_(port),
      states_(program.operations.size()),
      input_(kInputs, static_cast<float>(options.rank + 1)) {
  for (const Operation& operation : program.operations)
    left_ += operation.TakesPart(options_.rank) ? 1 : 0;
  MakeReady(Operation::kWorldSlot);
  for (int index = 0; index < static_cast<int>(states_.size()); ++index) {
    if (at(index).group_step != GroupStep::kDefine) continue;
    ready_.push_back(index);  // groups are added one after the other
    break;
  }
  std::reverse(ready_.begin(), ready_.end());  // the last is taken first
}

void Caller::MakeReady(int slot) {
  for (int index = static_cast<int>(states_.size()); index-- > 0;) {
    const Operation& operation = at(index);
    if (operation.group_step != GroupStep::kNone || operation.group_slot != slot) continue;
    if (operation.TakesPart(options_.rank)) ready_.push_back(index);
  }
  if (slot == Operation::kWorldSlot) std::reverse(ready_.begin(), ready_.end());
}

void Caller::SubmitLater() {
  if (is_waiting_) return;
  is_waiting_ = true;
  time_.In(dice_.MicrosBelow(options_.pace_us_max + 1), [this] {
    is_waiting_ = false;
    SubmitSome();
  });
}

void Caller::SubmitSome() {
  if (has_ended_ || (is_silent_ && left_ > 0)) return;
  EngineCore::Requests batch;
  const int wanted =
      std::min(dice_.Between(1, options_.batch_max), options_.open_max - open_count_);
  while (!ready_.empty() && static_cast<int>(batch.size()) < wanted) {
    const size_t back = dice_.Next() % std::min(ready_.size(), kDisorder);
    std::swap(ready_[ready_.size() - 1 - back], ready_.back());
    const int index = ready_.back();
    ready_.pop_back();
    const int round = states_[static_cast<size_t>(index)].round;
    if (LeavesOut(at(index), round)) {
      EndRound(index);
    } else if (at(index).refuser[static_cast<size_t>(round)] == options_.rank) {
      Refuse(index);
    } else {
      batch.push_back(Open(index));
    }
  }
  if (!batch.empty()) port_.Submit(std::move(batch));
  if (!ready_.empty() && open_count_ < options_.open_max) SubmitLater();
  if (left_ == 0) JoinOrStop();
}

bool Caller::LeavesOut(const Operation& operation, int round) const {
  return operation.is_left_out && round + 1 == operation.rounds() &&
         program_.is_joiner[static_cast<size_t>(options_.rank)];
}

Signature Caller::SignatureOf(const Operation& operation, bool is_odd) const {
  Signature signature = operation.signature;
  if (signature.kind == Kind::kSend) {
    const bool is_sender = operation.members[0] == options_.rank;
    signature.kind = is_sender ? Kind::kSend : Kind::kRecv;
    signature.root = operation.members[is_sender ? 1 : 0];
  }
  if (signature.kind == Kind::kAllgather) signature.shape[0] = RowsOf(operation, options_.rank);
  if (operation.group_slot >= 0 && operation.group_step == GroupStep::kNone)
    signature.group = group_ids_[static_cast<size_t>(operation.group_slot)];
  if (is_odd) signature.dtype = DType::kInt64;
  return signature;
}

std::shared_ptr<PendingRequest> Caller::Open(int index) {
  const Operation& operation = at(index);
  State& state = states_[static_cast<size_t>(index)];
  const bool is_odd = operation.odd_rank[state.round] == options_.rank;
  state.is_open = true;
  state.parts = state.exchanged = 0;
  ++open_count_;
  ++submitted_;
  Request request;
  request.name = operation.name;
  request.signature = SignatureOf(operation, is_odd);
  request.is_waited_for = operation.is_waited_for;
  const int64_t count = request.signature.count();
  const bool has_input = count <= static_cast<int64_t>(kInputs) / 2;
  request.input = {has_input ? input_.data() : nullptr, count, request.signature.dtype, {}};
  return std::make_shared<PendingRequest>(HandleOf(index, state.round), std::move(request), named_,
                                          std::chrono::microseconds(0), NanosOf(time_.Now()));
}

void Caller::Refuse(int index) {
  const Operation& operation = at(index);
  const TensorKey key = KeyOf(operation.name, SignatureOf(operation, false), options_.rank);
  const Status why = InvalidArgument(operation.name + " is refused").WithCulprit(options_.rank);
  port_.Tell([key, why](EngineCore& core) { core.Refuse(key, why); });
  EndRound(index);
}

void Caller::OnExchanged(const PendingRequest& pending, int64_t count) {
  if (pending.handle.value == kJoinHandle) return port_.Violate("a lane has got a join");
  State& state = states_[static_cast<size_t>((pending.handle.value - 1) >> 16)];
  ++state.parts;
  state.exchanged += static_cast<int32_t>(count);
}

void Caller::OnFinished(const PendingRequest& pending) {
  --open_count_;
  if (pending.handle.value == kJoinHandle) {
    if (!pending.status().ok() && !has_failed_) port_.Violate("the join has failed");
    if (!has_ended_) port_.Stop();
    return;
  }
  const int index = static_cast<int>((pending.handle.value - 1) >> 16);
  State& state = states_[static_cast<size_t>(index)];
  if (!state.is_open || pending.handle != HandleOf(index, state.round))
    return port_.Violate(at(index).name + " has ended, and is not open");
  state.is_open = false;
  if (has_ended_) {
    if (pending.status().ok() && has_failed_) return;  // its last bucket was through already
    if (!has_failed_) port_.Violate(at(index).name + " is open after the agreed stop");
    return;
  }
  Check(at(index), state, pending);
  EndRound(index);
}

void Caller::Check(const Operation& operation, const State& state, const PendingRequest& pending) {
  const Status& status = pending.status();
  const std::string what = operation.name + ", round " + std::to_string(state.round);
  if (!operation.IsGood(state.round)) {
    const int refuser = operation.refuser[state.round];
    if (status.ok()) {
      const int odd = operation.odd_rank[state.round];
      port_.Violate(what + " (" + std::string(Name(operation.signature.kind)) +
                    ") has succeeded, though rank " + std::to_string(refuser >= 0 ? refuser : odd) +
                    (refuser >= 0 ? " refused it" : " submitted something else"));
    }
    if (refuser >= 0 && status.culprit() != refuser) {
      port_.Violate(what + " was refused by rank " + std::to_string(refuser) + ", and says " +
                    status.ToString());
    }
    return;
  }
  if (!status.ok()) return port_.Violate(what + " has failed: " + status.ToString());
  const Kind kind = operation.signature.kind;
  if (kind == Kind::kVote) return;
  if (pending.output().view.data != nullptr) return CheckCarried(operation, state, pending);
  if (state.parts == 0) return port_.Violate(what + " has ended without an exchange");
  const bool is_whole = state.exchanged == operation.signature.count();
  if (TraitsOf(kind).has_equal_counts && !is_whole) {
    port_.Violate(what + " has ended after " + std::to_string(state.exchanged) + " elements");
  }
}

// Of data that came with the announcements: every rank's input is its rank and one, everywhere.
void Caller::CheckCarried(const Operation& operation, const State& state,
                          const PendingRequest& pending) {
  const TensorView& view = pending.output().view;
  const std::vector<float> expected = CarriedResult(operation, state, view.count);
  if (static_cast<int64_t>(expected.size()) != view.count)
    return port_.Violate(operation.name + " has " + std::to_string(view.count) + " elements");
  const auto* values = static_cast<const float*>(view.data);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (values[i] == expected[i]) continue;
    return port_.Violate(operation.name + " has " + std::to_string(values[i]) + " in place of " +
                         std::to_string(expected[i]) + " at " + std::to_string(i));
  }
}

std::vector<float> Caller::CarriedResult(const Operation& operation, const State& state,
                                         int64_t count) const {
  const auto input_of = [](int rank) { return static_cast<float>(rank + 1); };
  const Signature& signature = operation.signature;
  std::vector<float> result;
  if (signature.kind == Kind::kAllgather) {
    for (int rank : operation.members)
      result.resize(result.size() + static_cast<size_t>(RowsOf(operation, rank)), input_of(rank));
    return result;
  }
  float value = 0;
  const bool is_left_out = operation.is_left_out && state.round + 1 == operation.rounds();
  for (int rank : operation.members) {  // none without them: nothing is carried in plain programs
    const bool counts = signature.kind == Kind::kBroadcast
                            ? rank == signature.root
                            : !(is_left_out && program_.is_joiner[static_cast<size_t>(rank)]);
    if (counts) value += input_of(rank);
  }
  result.assign(static_cast<size_t>(count), value);
  return result;
}

int64_t Caller::RowsOf(const Operation& operation, int rank) {
  return operation.signature.shape[0] + rank % 3;
}

void Caller::EndRound(int index) {
  const Operation& operation = at(index);
  State& state = states_[static_cast<size_t>(index)];
  ++state.round;
  if (state.round < operation.rounds()) {
    ready_.push_back(index);
  } else {
    --left_;
    if (operation.group_step == GroupStep::kDefine) AddGroup(index);
    if (operation.group_step == GroupStep::kConfirm) UseGroup(operation.group_slot);
    if (operation.group_step == GroupStep::kNone) RemoveGroupIfOver(operation.group_slot);
  }
  if (!ready_.empty() || left_ == 0) SubmitLater();
}

void Caller::AddGroup(int definition) {
  const auto group = groups_.Add(program_.groups[static_cast<size_t>(at(definition).group_slot)]);
  group_ids_.push_back(group->id);
  ++left_;  // until the command has run
  port_.Tell([this, group, definition](EngineCore& core) {
    core.AddGroup(*group);
    --left_;
    ready_.push_back(definition + 1);  // the vote that this rank knows it
    SubmitLater();
  });
}

// All ranks know it.
void Caller::UseGroup(int slot) {
  MakeReady(slot);
  for (int index = 0; index < static_cast<int>(states_.size()); ++index) {
    const bool is_next = at(index).group_slot == slot + 1;
    if (is_next && at(index).group_step == GroupStep::kDefine) ready_.push_back(index);
  }
  RemoveGroupIfOver(slot);
}

void Caller::RemoveGroupIfOver(int slot) {
  if (slot == Operation::kWorldSlot) return;
  int removal = -1;
  for (int index = 0; index < static_cast<int>(states_.size()); ++index) {
    const Operation& operation = at(index);
    if (operation.group_slot != slot) continue;
    if (operation.group_step == GroupStep::kRemove) removal = index;
    const bool is_mine =
        operation.group_step == GroupStep::kNone && operation.TakesPart(options_.rank);
    if (is_mine && states_[static_cast<size_t>(index)].round < operation.rounds()) return;
  }
  if (removal < 0) return;
  groups_.StageRemoval(at(removal).name, group_ids_[static_cast<size_t>(slot)]);
  ready_.push_back(removal);
}

void Caller::JoinOrStop() {
  if (!program_.joins) return port_.Stop();
  if (has_joined_) return;
  has_joined_ = true;
  ++open_count_;
  Request request;
  request.name = "join";
  request.signature.kind = Kind::kJoin;
  port_.Submit(
      {std::make_shared<PendingRequest>(Handle{kJoinHandle}, std::move(request), named_,
                                        std::chrono::microseconds(0), NanosOf(time_.Now()))});
}

std::string Caller::Describe() const {
  std::string text = std::to_string(left_) + " operations are not through, " +
                     std::to_string(open_count_) + " requests are open:";
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!states_[i].is_open) continue;
    text += " " + program_.operations[i].name + "(" + std::to_string(states_[i].round) + ")";
  }
  return has_joined_ ? text + " join" : text;
}

}  // namespace rabit::testing

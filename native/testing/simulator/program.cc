#include "testing/simulator/program.h"

#include <algorithm>

namespace rabit::testing {
namespace {

constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kAllreduce, Kind::kAllreduce,
                           Kind::kBroadcast, Kind::kAllgather, Kind::kVote,
                           Kind::kBarrier,   Kind::kSend,      Kind::kReduceScatter};
constexpr int64_t kCounts[] = {0, 1, 4, 4, 60, 300, 1000};

std::vector<int> All(int ranks) {
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
  return all;
}

std::vector<int> SomeOf(int ranks, Dice& dice) {
  std::vector<int> some;
  for (int rank = 0; rank < ranks; ++rank)
    if (dice.OneIn(2)) some.push_back(rank);
  if (some.empty()) some.push_back(dice.Below(ranks));
  return some;
}

void MakeRounds(Operation& operation, int rounds) {
  operation.odd_rank.assign(static_cast<size_t>(rounds), -1);
  operation.refuser.assign(static_cast<size_t>(rounds), -1);
}

// Two ends, or all of the group.
void Place(Operation& operation, const Program::Options& options, const Program& program,
           Dice& dice) {
  if (options.is_plain) return;  // thousands of ranks
  operation.members = All(options.ranks);
  if (operation.signature.kind == Kind::kSend) {
    const int sender = dice.Below(options.ranks);
    const int receiver = (sender + 1 + dice.Below(options.ranks - 1)) % options.ranks;
    operation.members = {sender, receiver};
    return;
  }
  if (program.groups.empty() || dice.OneIn(2)) return;
  operation.group_slot = dice.Below(static_cast<int>(program.groups.size()));
  operation.members = program.groups[static_cast<size_t>(operation.group_slot)];
}

// A message between two ranks has nothing that they could differ in but its size, and a barrier
// and a vote have nothing at all.
void AddMistakes(Operation& operation, Dice& dice) {
  const Kind kind = operation.signature.kind;
  const bool can_differ = operation.members.size() > 1 && kind != Kind::kBarrier &&
                          kind != Kind::kVote && kind != Kind::kSend;
  const auto pick = [&] {
    return operation
        .members[static_cast<size_t>(dice.Below(static_cast<int>(operation.members.size())))];
  };
  for (size_t round = 0; round < operation.odd_rank.size(); ++round) {
    if (can_differ && dice.OneIn(12)) {
      operation.odd_rank[round] = pick();
    } else if (dice.OneIn(15)) {
      operation.refuser[round] = pick();
    }
  }
}

Operation RandomOperation(int index, const Program::Options& options, const Program& program,
                          Dice& dice) {
  Operation operation;
  operation.name = "t" + std::to_string(index);
  Signature& signature = operation.signature;
  signature.kind = options.is_plain ? Kind::kAllreduce : dice.OneOf(kKinds);
  const bool has_partner = options.ranks > 1;
  if (signature.kind == Kind::kSend && !has_partner) signature.kind = Kind::kAllreduce;
  signature.shape = {dice.OneOf(kCounts)};
  signature.priority = dice.OneIn(2) ? -index : 0;
  signature.backend = dice.Below(options.backends + 1) - 1;  // or none
  Place(operation, options, program, dice);
  if (signature.kind == Kind::kBroadcast) signature.root = operation.members[0];
  if (signature.kind == Kind::kBarrier) signature.shape.clear();
  if (signature.kind == Kind::kVote) {  // Its bits travel as its extent.
    signature.dtype = DType::kInt64;
    signature.shape = {5};
  }
  operation.is_waited_for =
      !options.is_plain && TraitsOf(signature.kind).carried != Carried::kNothing && dice.OneIn(3);
  MakeRounds(operation, options.rounds);
  if (!options.is_plain) AddMistakes(operation, dice);
  return operation;
}

// Of all ranks, in this order.
std::vector<Operation> GroupSteps(int slot, int ranks) {
  const std::string number = std::to_string(slot);
  std::vector<Operation> steps(3);
  steps[0].name = "rabit.add_group." + number;
  steps[0].group_step = Operation::GroupStep::kDefine;
  steps[0].signature.kind = Kind::kAllgather;
  steps[0].signature.dtype = DType::kInt32;
  steps[0].signature.shape = {3};
  steps[1].name = steps[0].name + ".taken";
  steps[1].group_step = Operation::GroupStep::kConfirm;
  steps[2].name = "rabit.remove_group." + number;
  steps[2].group_step = Operation::GroupStep::kRemove;
  for (Operation& step : steps) {
    step.members = All(ranks);
    step.group_slot = slot;
    MakeRounds(step, 1);
    if (step.group_step == Operation::GroupStep::kDefine) continue;
    step.signature.kind = Kind::kVote;
    step.signature.dtype = DType::kInt64;
    step.signature.shape = {1};
  }
  return steps;
}

}  // namespace

Program Program::Random(const Options& options, Dice& dice) {
  Program program;
  const int groups = options.is_plain ? 0 : dice.Below(3);
  for (int slot = 0; slot < groups; ++slot) {
    program.groups.push_back(SomeOf(options.ranks, dice));
    for (Operation& step : GroupSteps(slot, options.ranks)) {
      const bool is_removal = step.group_step == Operation::GroupStep::kRemove;
      if (!is_removal || options.removes_groups) program.operations.push_back(std::move(step));
    }
  }
  program.joins = !options.is_plain && dice.OneIn(5);
  // Rank 0 is none, so that somebody submits what the others leave out.
  for (int rank = 0; rank < options.ranks; ++rank)
    program.is_joiner.push_back(program.joins && rank > 0 && dice.OneIn(2));
  for (int i = 0; i < options.tensors; ++i) {
    Operation operation = RandomOperation(i, options, program, dice);
    operation.is_left_out = program.joins && operation.signature.kind == Kind::kAllreduce &&
                            operation.group_slot == Operation::kWorldSlot &&
                            operation.IsGood(operation.rounds() - 1) && dice.OneIn(2);
    program.operations.push_back(std::move(operation));
  }
  return program;
}

}  // namespace rabit::testing

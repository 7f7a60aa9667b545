// Program: what the ranks of a simulated job do, and what must come of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "control/agreement.h"
#include "testing/simulator/dice.h"

namespace rabit::testing {

// One tensor, submitted in every round by each of its members.
struct Operation {
  static constexpr int kWorldSlot = -1;

  std::string name;
  Signature signature;  // the group's id comes from the slot
  int group_slot = kWorldSlot;
  std::vector<int> members;  // none: every rank
  bool is_waited_for = false;
  bool is_left_out = false;  // joiners do not submit its last round
  // What all ranks do for the group in group_slot: gather its lists, vote that each knows it, and
  // in the end that it goes.
  enum class GroupStep { kNone, kDefine, kConfirm, kRemove };
  GroupStep group_step = GroupStep::kNone;
  // By round; -1: nobody.
  std::vector<int> odd_rank;  // submits something else
  std::vector<int> refuser;   // turns its own down

  bool TakesPart(int rank) const {
    return members.empty() || std::find(members.begin(), members.end(), rank) != members.end();
  }
  int rounds() const { return static_cast<int>(odd_rank.size()); }
  bool IsGood(int round) const {
    const auto at = static_cast<size_t>(round);
    return odd_rank[at] < 0 && refuser[at] < 0;
  }
};

struct Program {
  struct Options {
    int ranks = 2;
    int tensors = 12;
    int rounds = 3;
    int backends = 1;       // that operations name
    bool is_plain = false;  // allreduces alone, without mistakes, groups and joins
    // A removal would wait for ranks that wait for a silent one, and name them.
    bool removes_groups = true;
  };

  std::vector<Operation> operations;
  std::vector<std::vector<int>> groups;  // in the order in which they are added
  bool joins = false;                    // every rank joins before it stops
  std::vector<bool> is_joiner;           // by rank

  static Program Random(const Options& options, Dice& dice);
};

}  // namespace rabit::testing

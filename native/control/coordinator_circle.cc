// Ranks that wait for each other: each for what another one of them has not submitted.
#include <algorithm>
#include <string>
#include <utility>

#include "control/coordinator.h"

namespace rabit {

bool Coordinator::NoteCallers(int rank, const ScheduleDigest& digest, int64_t now_us) {
  RankState& state = at(rank);
  const bool goes_on = digest.submissions != state.submissions;
  state.submissions = digest.submissions;
  if (!digest.are_callers_stuck) {
    state.stuck_first_us = state.stuck_last_us = -1;
  } else {
    // A rank that has submitted since the last look starts its time again: it moved.
    if (goes_on || state.stuck_first_us < 0) state.stuck_first_us = now_us;
    state.stuck_last_us = now_us;
  }
  // Answers to different questions say nothing about each other.
  if (digest.cycle != answers_cycle_) answers_ = 0;
  answers_cycle_ = digest.cycle;
  return ++answers_ == options_.size;
}

// A rank whose callers all wait, and were seen so twice, submits nothing before something that it
// waits for is agreed; and that is not, as long as one of such ranks is missing.  So every rank
// goes that waits for something of which none is missing, until no further one does.
std::vector<bool> Coordinator::StuckForGood() const {
  std::vector<bool> is_stuck(ranks_.size());
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankState& state = ranks_[rank];
    is_stuck[rank] = state.stuck_first_us >= 0 &&
                     // One look may catch a rank between two submissions; two that are apart show
                     // that it does not move.
                     state.stuck_last_us - state.stuck_first_us >= options_.second_look_us;
  }
  for (bool has_changed = true; has_changed;) {
    std::vector<bool> waits(ranks_.size()), may_go_on(ranks_.size());
    for (const TensorRecord* record : open_) {
      const std::vector<int> absent = Absent(*record);
      // A tensor of which every missing rank still moves may complete, and wake the ranks that wait
      // for it.
      const bool is_blocked = std::any_of(absent.begin(), absent.end(), [&](int rank) {
        return is_stuck[static_cast<size_t>(rank)];
      });
      record->arrived.ForEach([&](int rank) {
        waits[static_cast<size_t>(rank)] = true;
        if (!is_blocked) may_go_on[static_cast<size_t>(rank)] = true;
      });
    }
    has_changed = false;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!is_stuck[rank] || (waits[rank] && !may_go_on[rank])) continue;
      is_stuck[rank] = false;
      has_changed = true;
    }
  }
  return is_stuck;
}

Status Coordinator::FindCircle() {
  const bool is_possible = std::count_if(ranks_.begin(), ranks_.end(), [](const RankState& state) {
                             return state.stuck_first_us >= 0;
                           }) > 1;
  if (!is_possible) return {};
  // The path goes over open records, and a batch has none.
  SplitBatch();
  const std::vector<bool> is_stuck = StuckForGood();
  const auto first = std::find(is_stuck.begin(), is_stuck.end(), true);
  if (first == is_stuck.end()) return {};
  // From one rank to another that it waits for, until one comes again.
  std::vector<int> path;
  std::vector<std::string> lines;
  for (int rank = static_cast<int>(first - is_stuck.begin());
       std::find(path.begin(), path.end(), rank) == path.end();) {
    path.push_back(rank);
    for (const TensorRecord* record : open_) {
      if (!record->arrived.Contains(rank)) continue;
      const std::vector<int> absent = Absent(*record);
      const int next = *std::find_if(absent.begin(), absent.end(), [&](int missing) {
        return is_stuck[static_cast<size_t>(missing)];
      });
      const Signature& said = record->reference_is_agreed ? record->agreed : record->reference;
      lines.push_back(RankText(rank) + " waits for " + Title(said.kind, record->key.name) +
                      ", which " + RankText(next) + " has not submitted");
      rank = next;
      break;
    }
  }
  std::string text = "ranks wait for each other, and none of them will continue: ";
  for (size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : "; ") + lines[i];
  return Mismatch(text +
                  ". Submit the same tensors on every rank before you wait for one of them, or in "
                  "the same order.")
      .WithCulprit(path.front());
}

}  // namespace rabit

#include "testing/simulator/virtual_lanes.h"

#include <algorithm>
#include <utility>

#include "base/kind.h"

namespace rabit::testing {

VirtualLanes::VirtualLanes(VirtualTime& time, Dice& dice, const Options& options,
                           LaneOutcome& outcome)
    : time_(time),
      dice_(dice),
      options_(options),
      outcome_(outcome),
      lanes_(static_cast<size_t>(options.ranks * options.lanes)),
      is_aborted_(static_cast<size_t>(options.ranks)) {}

void VirtualLanes::Push(int rank, BucketJob job) {
  const int lane = job.bucket.lane;
  LaneOf(rank, lane).jobs.push_back(std::move(job));
  Begin(rank, lane);
}

void VirtualLanes::Begin(int rank, int lane) {
  Lane& mine = LaneOf(rank, lane);
  if (mine.is_busy || mine.jobs.empty()) return;
  mine.is_busy = true;
  const BucketJob& job = mine.jobs.front();
  outcome_.OnBegun(rank, job);
  const std::pair key(lane, job.bucket.id);
  Exchange& exchange = exchanges_[key];
  const bool is_first = exchange.begun.empty();
  if (is_first) exchange = {job.hash, MembersOf(job), {}};
  if (exchange.hash != job.hash) {
    return outcome_.OnViolation("bucket " + std::to_string(job.bucket.id) + " on rank " +
                                std::to_string(rank) + " is another one than on rank " +
                                std::to_string(exchange.begun[0]));
  }
  exchange.begun.push_back(rank);
  if (exchange.begun.size() < exchange.members.size()) {
    if (gone_.empty()) return;  // the usual case, whatever the number of ranks
    for (int member : exchange.members)
      if (gone_.contains(member)) SuspectLater(rank, member);
    return;
  }
  const auto run = dice_.MicrosBelow(options_.run_us_max);
  for (int member : exchange.begun) {
    time_.In(run + dice_.MicrosBelow(options_.run_us_max / 4 + 1),
             [this, member, lane] { End(member, lane); });
  }
  exchanges_.erase(key);
}

void VirtualLanes::End(int rank, int lane) {
  if (is_aborted_[static_cast<size_t>(rank)]) return;
  Lane& mine = LaneOf(rank, lane);
  BucketJob job = std::move(mine.jobs.front());
  mine.jobs.pop_front();
  mine.is_busy = false;
  outcome_.OnDone(rank, std::move(job), Status());
  Begin(rank, lane);
}

void VirtualLanes::Lose(int rank) {
  gone_.insert(rank);
  is_aborted_[static_cast<size_t>(rank)] = true;
  for (const auto& [id, exchange] : exchanges_) {
    const auto& members = exchange.members;
    if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
    for (int waiting : exchange.begun) SuspectLater(waiting, rank);
  }
}

void VirtualLanes::SuspectLater(int rank, int gone) {
  time_.In(dice_.MicrosBelow(options_.notice_us_max), [this, rank, gone] {
    if (is_aborted_[static_cast<size_t>(rank)]) return;
    outcome_.OnSuspicion(rank, PeerLost(gone, "rank " + std::to_string(gone) + " does not answer"));
  });
}

void VirtualLanes::Abort(int rank, const Status& why) {
  is_aborted_[static_cast<size_t>(rank)] = true;
  for (int lane = 0; lane < options_.lanes; ++lane) {
    for (BucketJob& job : std::exchange(LaneOf(rank, lane).jobs, {}))
      outcome_.OnDone(rank, std::move(job), why);
  }
}

// A message has two ends; of other kinds all ranks of the group take part, joined ones included.
std::vector<int> VirtualLanes::MembersOf(const BucketJob& job) {
  if (!TraitsOf(job.bucket.kind).is_pair) return job.group->ranks;
  std::vector<int> ends;
  for (int64_t rank : job.items[0].tensor->ready->extents) ends.push_back(static_cast<int>(rank));
  return ends;
}

}  // namespace rabit::testing

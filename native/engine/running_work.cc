#include "engine/running_work.h"

#include <algorithm>
#include <utility>

namespace rabit {

void RunningWork::Enter(int32_t place, Running running, Describe describe) {
  MutexLock lock(mutex_);
  Place& at = places_[static_cast<size_t>(place)];
  // `describe` refers to the job of a lane, which must call Leave before it lets go of the job.
  at.under_way.push_back({std::move(running), std::move(describe)});
  ++at.begun;
}

void RunningWork::Leave(int32_t place, uint64_t number) {
  MutexLock lock(mutex_);
  std::erase_if(places_[static_cast<size_t>(place)].under_way,
                [number](const Exchange& each) { return each.running.number == number; });
}

std::vector<RunningWork::Running> RunningWork::List() const {
  MutexLock lock(mutex_);
  std::vector<Running> all;
  for (const Place& place : places_) {
    for (const Exchange& exchange : place.under_way) {
      // The lock is held during describe(): a lane in Leave waits, and its job lives so long.
      all.emplace_back(exchange.running).what = exchange.describe();
    }
  }
  return all;
}

RunningWork::Progress RunningWork::ProgressAt(int32_t place) const {
  MutexLock lock(mutex_);
  const Place& at = places_[static_cast<size_t>(place)];
  // Both are read under one lock, or a call that ends in between would look like one that never
  // began.
  return {at.begun, !at.under_way.empty()};
}

bool RunningWork::is_any_lane_active() const {
  MutexLock lock(mutex_);
  // The last place is that of ordered calls, which do not keep an engine from stopping.
  return std::any_of(places_.begin(), places_.end() - 1,
                     [](const Place& lane) { return !lane.under_way.empty(); });
}

}  // namespace rabit

#include "engine/running_work.h"

#include <utility>

namespace rabit {

void RunningWork::Enter(int32_t place, Running running, Describe describe) {
  MutexLock lock(mutex_);
  Place& at = places_[static_cast<size_t>(place)];
  at.running = std::move(running);
  at.describe = std::move(describe);
  ++at.begun;
}

void RunningWork::Leave(int32_t place) {
  MutexLock lock(mutex_);
  places_[static_cast<size_t>(place)].running.reset();
}

std::vector<RunningWork::Running> RunningWork::List() const {
  MutexLock lock(mutex_);
  std::vector<Running> all;
  for (const Place& place : places_) {
    if (!place.running) continue;
    Running& each = all.emplace_back(*place.running);
    each.what = place.describe();
  }
  return all;
}

RunningWork::Progress RunningWork::ProgressAt(int32_t place) const {
  MutexLock lock(mutex_);
  const Place& at = places_[static_cast<size_t>(place)];
  return {at.begun, at.running.has_value()};
}

}  // namespace rabit

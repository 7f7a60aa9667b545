// RunningWork: what this rank exchanges at the moment, for those who ask why it does not end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "control/controller.h"

namespace rabit {

// Each lane has one place, and the ordered calls have one together.  Thread-safe.
class RunningWork {
 public:
  using Running = ScheduleDigest::Running;
  // Describes an exchange that lasts; called under the lock, only while the exchange is entered.
  using Describe = std::function<std::string()>;

  explicit RunningWork(int32_t lanes) : places_(static_cast<size_t>(lanes) + 1) {}

  // Of a lane, or of ordered calls (place = number of lanes).  `describe` may refer to what lives
  // until Leave.
  void Enter(int32_t place, Running running, Describe describe);
  // The exchange of this number is over; a lane may have several under way.
  void Leave(int32_t place, uint64_t number);

  // Everything that is under way, with its description.
  std::vector<Running> List() const;
  // How many exchanges have begun at `place`, and whether the last of them is under way.
  struct Progress {
    uint64_t begun = 0;
    bool is_active = false;
  };
  Progress ProgressAt(int32_t place) const;
  // Whether a lane exchanges something; ordered calls do not count.
  bool is_any_lane_active() const;

 private:
  struct Exchange {
    Running running;
    Describe describe;
  };
  struct Place {
    std::vector<Exchange> under_way;
    uint64_t begun = 0;
  };

  mutable Mutex mutex_;
  std::vector<Place> places_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

// Devices: the driver of this rank's devices, the streams that its copies go through, and the
// pinned memory that they go from and to.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/device/device.h"
#include "base/device/pinned_pool.h"
#include "base/mutex.h"
#include "base/result.h"

namespace rabit {

// Thread-safe.
class Devices {
 public:
  // Loads the driver; an empty one: there is none.
  using Open = std::function<Result<std::shared_ptr<DeviceDriver>>()>;
  // One for each direction, because a device copies both ways at once, and one more.
  struct Streams {
    DeviceStream to_host;
    DeviceStream to_device;
    DeviceStream exchange;  // of backends that work on devices
  };

  Devices(Open open, int local_rank, size_t pinned_bytes)
      : pinned(std::make_shared<PinnedPool>(pinned_bytes)),
        open_(std::move(open)),
        local_rank_(local_rank) {}

  // Whoever has taken of it may outlive this.
  const std::shared_ptr<PinnedPool> pinned;

  // Loaded when it is first asked for; kUnsupported says why there is none.
  Result<std::shared_ptr<DeviceDriver>> driver();
  // An event that stands for what is on `stream` now.  kUnsupported if that records a graph.
  Result<std::shared_ptr<const DeviceEvent>> Mark(int device, void* stream);
  // The device of the last request; before the first one that of this rank's place on its host,
  // where a backend may want one for each rank.
  Result<int> last_used();
  // Those of one device; they live as long as this.
  Result<const Streams*> StreamsOf(int device);

 private:
  const Open open_;
  const int local_rank_;
  std::atomic<int> last_used_{-1};  // none
  Mutex mutex_;
  std::optional<Result<std::shared_ptr<DeviceDriver>>> driver_ RABIT_GUARDED_BY(mutex_);
  std::map<int, Streams> streams_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

// HierarchicalBackend: tensors on devices are summed inside each host by one backend, and between
// the hosts by another.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/device/pinned_pool.h"
#include "base/device/stream_tail.h"
#include "base/group.h"
#include "base/mutex.h"
#include "collective/cost.h"

namespace rabit {

// The two backends; both outlive all calls, and are not touched when this one goes.
struct HierarchyParts {
  Backend& inside;      // works on devices
  Backend& between;     // works in the memory of the host, with algorithms of its own
  Topology topology;    // of all ranks
  LinkModel link = {};  // between hosts
  // Of one piece, or more: small enough that the network has the first one soon, so large that
  // launches do not show.
  int64_t piece_bytes = 1 << 20;
};

// An allreduce takes three steps: each rank of a host gets the sum of one part, ranks with the same
// part on every host sum it up in pinned memory, and each host gathers the parts.  It is cut into
// pieces, so that the device copies one while the hosts exchange another.  It has nothing else.
// With the algorithm "plan", each part follows the trees of the group's plan between the hosts; with
// any other a ring in its order, or for two hosts, little or 16-bit sums what the link model says.
//
// A call returns when the last step is on the stream, and blocks for the exchange between hosts.
// What is launched in which order depends on the size alone: all ranks of a device's communicators
// launch alike.  One thread for each device, one order on all ranks.  Abort and Failure: any
// thread.
class HierarchicalBackend final : public Backend {
 public:
  HierarchicalBackend(std::string name, HierarchyParts parts);

  std::string_view name() const override { return name_; }
  bool works_on_devices() const override { return true; }

  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override;

  Status Failure(const Group& group) override;
  void Abort(Status why) override;
  void WriteStatistics(JsonWriter& json) const override;

 private:
  class Exchange;

  // Pinned memory for the parts of one device.  Whoever copies does so on one stream of the device:
  // what comes later may use the memory again.
  struct Images {
    // For `bytes` in pieces of at most `piece_bytes`, each with an event of its own.
    Status Reserve(const DevicePlace& place, size_t bytes, size_t piece_bytes, size_t pieces);

    std::vector<PinnedBlock> blocks;    // the last one is in use, others until `last` is over
    std::vector<DeviceEvent> arrivals;  // of pieces, in the memory of the host
    StreamTail last;
  };

  Images& ImagesOf(const DevicePlace& place);
  Status failure() const;

  const std::string name_;
  const HierarchyParts parts_;
  std::atomic<int64_t> pieces_{0};
  std::atomic<int64_t> bytes_between_{0};  // of this rank's parts
  mutable Mutex mutex_;
  std::map<int, Images> images_ RABIT_GUARDED_BY(mutex_);  // by device
  Status failure_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

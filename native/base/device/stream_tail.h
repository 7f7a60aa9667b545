// StreamTail: the end of what a stream was told to do with memory of ours.
#pragma once

#include <memory>

#include "base/device/device.h"

namespace rabit {

// Its owner declares it behind that memory, which must not go earlier.  One thread at a time; the
// event is for any thread.
class StreamTail {
 public:
  StreamTail() = default;
  StreamTail(const StreamTail&) = delete;
  ~StreamTail() { (void)Wait(After(kLastWait)); }

  // Stands for what is on `stream` now, and no longer for what it stood for.
  Status Record(const std::shared_ptr<DeviceDriver>& driver, int device, void* stream);
  bool is_under_way() const { return is_under_way_; }
  // Blocks until it is over, or has failed; kTimedOut: it is still under way.
  Status Wait(Deadline deadline);
  // Somebody else has seen its end.
  void Pass() { is_under_way_ = false; }
  const DeviceEvent& event() const { return event_; }

 private:
  // Longer than any copy takes, and than kernels take to end that were told to.
  static constexpr std::chrono::seconds kLastWait{10};

  DeviceEvent event_;
  bool is_under_way_ = false;
};

}  // namespace rabit

// Request and OrderedCall: one collective that a Python thread asks for, and what has become of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/device/device.h"
#include "base/dtype.h"
#include "control/agreement.h"

namespace rabit {

struct Handle {
  uint64_t value = 0;  // 0 is never given out
  bool operator==(const Handle&) const = default;
};

struct HandleOutput {
  TensorView view;
  std::vector<int64_t> shape;
  std::vector<int64_t> received_splits;  // alltoall; rows from each rank
};

// Called once, on a native thread, right after the handle has finished; must not block, must not
// take the GIL.  Only for runtimes with a native dependency engine (MXNet): Python waits or polls.
struct Completion {
  void (*notify)(void* context, int32_t code, const char* message) = nullptr;
  void* context = nullptr;
};

struct Request {
  std::string name;
  Signature signature;
  Device device;  // of this rank's memory; what the ranks agree on is its kind
  // On a device: what is on this stream at submission comes before the request.  The engine sets
  // `ready`, which then stands for that.
  uint64_t stream = 0;
  std::shared_ptr<const DeviceEvent> ready;
  // The engine sets it: the ranks agree on the request before `ready` is over, because whoever runs
  // it waits for that on the device.
  bool is_early = false;
  TensorView input;
  TensorView output;  // data == nullptr: the engine allocates it when its size is known
  // What a codec has not sent in earlier calls, of the input's dtype and count; or no data.  Of a
  // codec with two residuals there are as many elements behind these.  In the memory of the host,
  // wherever the input is.  The caller's, until the request is finished.
  TensorView residual;
  // Alltoall: rows for each rank of the group, also where the signature has none.
  std::vector<int64_t> splits;
  uint64_t seed = 0;  // of a codec's random numbers: equal on all ranks, another one in every call
  Completion completion;
  bool is_waited_for = false;  // by the thread that submits it
};

// One operation that needs no negotiation (Engine::RunOrdered).
struct OrderedCall {
  // kAllreduce, kBroadcast, kAllgather, kReduceScatter, kAlltoall (equal parts) or kBarrier.
  Kind kind = Kind::kAllreduce;
  TensorView input;   // broadcast: unused
  TensorView output;  // may be the input where both have one size
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root = -1;  // global rank
  GroupId group = kWorld;
  BackendId backend = kAnyBackend;

  // What this rank's part of the collective is measured by.
  const TensorView& payload() const { return kind == Kind::kBroadcast ? output : input; }
};

}  // namespace rabit

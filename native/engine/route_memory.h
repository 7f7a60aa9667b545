// RouteMemory: the routes of collectives that ran before.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "route/router.h"

namespace rabit {

// A choice by cost compares some ten models, which takes longer than all else around a small
// tensor, and a training step makes the same choices again and again.  One thread at a time.
class RouteMemory {
 public:
  // `router` outlives it.
  explicit RouteMemory(const Router& router) : router_(router) {}

  // See Router::Of.
  Result<Route> Of(const Work& work, Load load, const Group& group) {
    const Key key{work.kind,
                  work.dtype,
                  work.op,
                  work.device_kind,
                  work.backend,
                  work.avoided_backends,
                  group.id,
                  group.plan,
                  work.root,
                  load,
                  work.prescale,
                  work.postscale,
                  !work.codec.empty()};
    Entry& entry = entries_[IndexOf(key)];
    if (entry.route.has_value() && entry.key == key) return *entry.route;
    Result<Route> route = router_.Of(work, load, group);
    if (route.ok()) entry = {key, *route};
    return route;
  }

 private:
  // All that a route depends on.
  struct Key {
    Kind kind = Kind::kAllreduce;
    DType dtype = DType::kFloat32;
    ReduceOp op = ReduceOp::kSum;
    DeviceKind device_kind = DeviceKind::kCpu;
    BackendId backend = kAnyBackend;
    uint32_t avoided_backends = 0;
    GroupId group = kWorld;
    std::shared_ptr<const TreePlan> plan;
    int32_t root = -1;
    Load load;
    double prescale = 1.0;  // of what is on a device
    double postscale = 1.0;
    bool has_codec = false;  // of what is on a device

    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;
    std::optional<Route> route;
  };

  static constexpr int kIndexBits = 8;

  // The low bits of a product depend on few bits of its factor, the high ones on all.
  static size_t IndexOf(const Key& key) {
    const uint64_t mixed =
        static_cast<uint64_t>(key.load.bytes) ^ static_cast<uint64_t>(key.kind) << 56 ^
        static_cast<uint64_t>(key.dtype) << 48 ^ static_cast<uint64_t>(key.group) << 32;
    return (mixed * 0x9e3779b97f4a7c15) >> (64 - kIndexBits);
  }

  const Router& router_;
  std::array<Entry, 1 << kIndexBits> entries_;
};

}  // namespace rabit

// RoutedBackend: a backend that is called without an engine, with the routes that one would take.
#pragma once

#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "route/router.h"
#include "testing/forwarding_backend.h"

namespace rabit::testing {

// Only the algorithm of a route counts: everything runs in `inner`.  As thread-safe as that.
class RoutedBackend final : public ForwardingBackend {
 public:
  RoutedBackend(std::unique_ptr<Backend> inner, RouterOptions options)
      : ForwardingBackend(std::move(inner)), router_(std::move(options)) {}

  bool applies_epilogues() const override { return inner().applies_epilogues(); }
  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    return inner().Allreduce(On(lane, Kind::kAllreduce, in_out.dtype, in_out.bytes()), in_out, op);
  }
  Operation Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                   int root) override {
    return inner().Reduce(On(lane, Kind::kReduce, in_out.dtype, in_out.bytes()), in_out, op, root);
  }
  Operation Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                      std::span<const int64_t> part_bytes) override {
    return inner().Allgather(On(lane, Kind::kAllgather, DType::kUint8, Total(part_bytes)), mine,
                             all, part_bytes);
  }
  Operation ReduceScatter(const LaneContext& lane, const TensorView& in, const TensorView& out,
                          std::span<const int64_t> part_counts, ReduceOp op) override {
    return inner().ReduceScatter(On(lane, Kind::kReduceScatter, in.dtype, in.bytes()), in, out,
                                 part_counts, op);
  }
  Operation Broadcast(const LaneContext& lane, Bytes buffer, int root) override {
    return inner().Broadcast(On(lane, Kind::kBroadcast, DType::kUint8, buffer.size()), buffer,
                             root);
  }

 private:
  static size_t Total(std::span<const int64_t> parts) {
    return static_cast<size_t>(std::accumulate(parts.begin(), parts.end(), int64_t{0}));
  }
  LaneContext On(const LaneContext& lane, Kind kind, DType dtype, size_t bytes) const {
    Work work;
    work.kind = kind;
    work.dtype = dtype;
    const Result<Route> route = router_.Of(work, {static_cast<int64_t>(bytes)}, lane.group);
    LaneContext routed = lane;
    routed.algorithm = route->algorithm;
    return routed;
  }

  const Router router_;
};

}  // namespace rabit::testing

// RoutedBackend: a backend that is called without an engine, with the routes that one would take.
#pragma once

#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "backend/backend.h"
#include "route/router.h"

namespace rabit::testing {

// Only the algorithm of a route counts: everything runs in `inner`.  As thread-safe as that.
class RoutedBackend final : public Backend {
 public:
  RoutedBackend(std::unique_ptr<Backend> inner, RouterOptions options)
      : inner_(std::move(inner)), router_(std::move(options)) {}

  std::string_view name() const override { return inner_->name(); }
  Status AddGroup(const Group& group) override { return inner_->AddGroup(group); }
  void Abort(Status why) override { inner_->Abort(std::move(why)); }
  void WriteStatistics(JsonWriter& json) const override { inner_->WriteStatistics(json); }

  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    return inner_->Allreduce(On(lane, Kind::kAllreduce, in_out.dtype, in_out.bytes()), in_out, op);
  }
  Operation Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                   int root) override {
    return inner_->Reduce(On(lane, Kind::kReduce, in_out.dtype, in_out.bytes()), in_out, op, root);
  }
  Operation Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                      std::span<const int64_t> part_bytes) override {
    return inner_->Allgather(On(lane, Kind::kAllgather, DType::kUint8, Total(part_bytes)), mine,
                             all, part_bytes);
  }
  Operation ReduceScatter(const LaneContext& lane, const TensorView& in, const TensorView& out,
                          std::span<const int64_t> part_counts, ReduceOp op) override {
    return inner_->ReduceScatter(On(lane, Kind::kReduceScatter, in.dtype, in.bytes()), in, out,
                                 part_counts, op);
  }
  Operation Broadcast(const LaneContext& lane, Bytes buffer, int root) override {
    return inner_->Broadcast(On(lane, Kind::kBroadcast, DType::kUint8, buffer.size()), buffer,
                             root);
  }
  Operation Alltoall(const LaneContext& lane, ConstBytes in, std::span<const int64_t> send_bytes,
                     Bytes out, std::span<const int64_t> receive_bytes) override {
    return inner_->Alltoall(lane, in, send_bytes, out, receive_bytes);
  }
  Operation Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                   std::span<const int64_t> part_bytes, int root) override {
    return inner_->Gather(lane, mine, all, part_bytes, root);
  }
  Operation Scatter(const LaneContext& lane, ConstBytes all, std::span<const int64_t> part_bytes,
                    Bytes mine, int root) override {
    return inner_->Scatter(lane, all, part_bytes, mine, root);
  }
  Operation Barrier(const LaneContext& lane) override { return inner_->Barrier(lane); }
  Operation Send(const LaneContext& lane, ConstBytes buffer, int peer) override {
    return inner_->Send(lane, buffer, peer);
  }
  Operation Recv(const LaneContext& lane, Bytes buffer, int peer) override {
    return inner_->Recv(lane, buffer, peer);
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
    return {lane.lane, lane.tag, lane.deadline, lane.group, lane.waiter, route->algorithm};
  }

  const std::unique_ptr<Backend> inner_;
  const Router router_;
};

}  // namespace rabit::testing

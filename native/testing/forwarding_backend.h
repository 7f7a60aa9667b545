// ForwardingBackend: a backend that another one stands behind.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "backend/backend.h"

namespace rabit::testing {

// Hands every call to `inner`; a test derives from it and changes what it is about.  As thread-safe
// as `inner`.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  Status AddGroup(const Group& group) override { return inner_->AddGroup(group); }
  void RemoveGroup(const Group& group) override { inner_->RemoveGroup(group); }
  void Abort(Status why) override { inner_->Abort(std::move(why)); }
  void WriteStatistics(JsonWriter& json) const override { inner_->WriteStatistics(json); }

  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    return inner_->Allreduce(lane, in_out, op);
  }
  Operation Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                   int root) override {
    return inner_->Reduce(lane, in_out, op, root);
  }
  Operation Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                      std::span<const int64_t> part_bytes) override {
    return inner_->Allgather(lane, mine, all, part_bytes);
  }
  Operation ReduceScatter(const LaneContext& lane, const TensorView& in, const TensorView& out,
                          std::span<const int64_t> part_counts, ReduceOp op) override {
    return inner_->ReduceScatter(lane, in, out, part_counts, op);
  }
  Operation Broadcast(const LaneContext& lane, Bytes buffer, int root) override {
    return inner_->Broadcast(lane, buffer, root);
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

 protected:
  Backend& inner() const { return *inner_; }

 private:
  const std::unique_ptr<Backend> inner_;
};

}  // namespace rabit::testing

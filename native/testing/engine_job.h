// Ranks as threads, each with a whole engine: in-process channel, in-process transport, the real
// negotiation and scheduler, and a backend that is too simple to be wrong.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arithmetic/reduce.h"
#include "backend/backend.h"
#include "codec/codec_table.h"
#include "control/channel_controller.h"
#include "engine/engine.h"
#include "route/router.h"
#include "schedule/fifo_scheduler.h"
#include "schedule/priority_scheduler.h"
#include "testing/inproc_channel.h"
#include "testing/inproc_transport.h"
#include "testing/run_ranks.h"
#include "testing/test.h"

namespace rabit::testing {

// Everybody sends to everybody and reduces in rank order.
class PlainBackend final : public Backend {
 public:
  explicit PlainBackend(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

  std::string_view name() const override { return "plain"; }
  bool applies_epilogues() const override { return true; }
  void Abort(Status why) override { transport_->Abort(std::move(why)); }

  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    const Bytes mine(static_cast<std::byte*>(in_out.data), in_out.bytes());
    std::vector<std::byte> all(mine.size() * static_cast<size_t>(lane.group.size()));
    RABIT_RETURN_IF_ERROR(Exchange(
        lane, Repeat(mine, lane),
        Split(all,
              std::vector<int64_t>(lane.group.ranks.size(), static_cast<int64_t>(mine.size())))));
    std::vector<const std::byte*> inputs;
    for (int i = 0; i < lane.group.size(); ++i) {
      inputs.push_back(all.data() + mine.size() * static_cast<size_t>(i));
    }
    rabit::Reduce(op, in_out.dtype, inputs, mine.data(), in_out.count, lane.epilogue);
    return Status();
  }
  Operation Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op, int) override {
    return Allreduce(lane, in_out, op);
  }
  Operation Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                      std::span<const int64_t> part_bytes) override {
    return Exchange(lane, Repeat(mine, lane), Split(all, part_bytes));
  }
  Operation ReduceScatter(const LaneContext& lane, const TensorView& in, const TensorView& out,
                          std::span<const int64_t> part_counts, ReduceOp op) override {
    const auto* const input = static_cast<const std::byte*>(in.data);
    std::vector<std::byte> sum(input, input + in.bytes());
    RABIT_RETURN_IF_ERROR(
        Allreduce(lane, {sum.data(), in.count, in.dtype, in.device}, op).Wait(lane.deadline));
    int64_t first = 0;
    for (int i = 0; i < lane.group.my_index; ++i) first += part_counts[static_cast<size_t>(i)];
    std::memcpy(out.data, sum.data() + first * static_cast<int64_t>(SizeOf(in.dtype)), out.bytes());
    return Status();
  }
  Operation Broadcast(const LaneContext& lane, Bytes buffer, int root) override {
    const bool is_root = lane.group.my_index == root;
    std::vector<ConstBytes> out(lane.group.ranks.size(),
                                is_root ? ConstBytes(buffer) : ConstBytes());
    std::vector<Bytes> in(lane.group.ranks.size());
    if (!is_root) in[static_cast<size_t>(root)] = buffer;
    return Exchange(lane, out, in, is_root);
  }
  Operation Alltoall(const LaneContext& lane, ConstBytes in, std::span<const int64_t> send_bytes,
                     Bytes out, std::span<const int64_t> receive_bytes) override {
    return Exchange(lane, SplitConst(in, send_bytes), Split(out, receive_bytes));
  }
  Operation Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                   std::span<const int64_t> part_bytes, int root) override {
    std::vector<ConstBytes> out(lane.group.ranks.size());
    out[static_cast<size_t>(root)] = mine;
    std::vector<Bytes> in(lane.group.ranks.size());
    if (lane.group.my_index == root) in = Split(all, part_bytes);
    return Exchange(lane, out, in);
  }
  Operation Scatter(const LaneContext& lane, ConstBytes all, std::span<const int64_t> part_bytes,
                    Bytes mine, int root) override {
    std::vector<ConstBytes> out(lane.group.ranks.size());
    if (lane.group.my_index == root) out = SplitConst(all, part_bytes);
    std::vector<Bytes> in(lane.group.ranks.size());
    in[static_cast<size_t>(root)] = mine;
    return Exchange(lane, out, in);
  }
  Operation Barrier(const LaneContext& lane) override {
    return Exchange(lane, std::vector<ConstBytes>(lane.group.ranks.size()),
                    std::vector<Bytes>(lane.group.ranks.size()));
  }
  Operation Send(const LaneContext& lane, ConstBytes buffer, int peer) override {
    return transport_->Send(RankOf(lane, peer), lane.tag, buffer).Wait(lane.deadline);
  }
  Operation Recv(const LaneContext& lane, Bytes buffer, int peer) override {
    return transport_->Recv(RankOf(lane, peer), lane.tag, buffer).Wait(lane.deadline);
  }

 private:
  static int RankOf(const LaneContext& lane, int index) {
    return lane.group.ranks[static_cast<size_t>(index)];
  }
  static std::vector<ConstBytes> Repeat(ConstBytes part, const LaneContext& lane) {
    return std::vector<ConstBytes>(lane.group.ranks.size(), part);
  }
  static std::vector<Bytes> Split(Bytes all, std::span<const int64_t> bytes) {
    std::vector<Bytes> parts;
    for (int64_t each : bytes) {
      parts.push_back(all.first(static_cast<size_t>(each)));
      all = all.subspan(static_cast<size_t>(each));
    }
    return parts;
  }
  static std::vector<ConstBytes> SplitConst(ConstBytes all, std::span<const int64_t> bytes) {
    std::vector<ConstBytes> parts;
    for (int64_t each : bytes) {
      parts.push_back(all.first(static_cast<size_t>(each)));
      all = all.subspan(static_cast<size_t>(each));
    }
    return parts;
  }

  // out[i] goes to member i, in[i] comes from it.  `copies_own`: this rank's part is copied.
  Status Exchange(const LaneContext& lane, const std::vector<ConstBytes>& out,
                  const std::vector<Bytes>& in, bool is_silent_receiver = false) {
    size_t bytes = 0;
    for (const ConstBytes& each : out) bytes += each.size();
    transport_->SetWaiter(lane.lane, lane.waiter, bytes);
    std::vector<Operation> operations;
    const auto size = lane.group.ranks.size();
    const auto me = static_cast<size_t>(lane.group.my_index);
    for (size_t i = 0; i < size && !is_silent_receiver; ++i) {
      if (i == me) continue;
      operations.push_back(transport_->Recv(RankOf(lane, static_cast<int>(i)), lane.tag, in[i]));
    }
    for (size_t i = 0; i < size; ++i) {
      if (i == me) continue;
      operations.push_back(transport_->Send(RankOf(lane, static_cast<int>(i)), lane.tag, out[i]));
    }
    for (Operation& each : operations) RABIT_RETURN_IF_ERROR(each.Wait(lane.deadline));
    if (is_silent_receiver) {  // a broadcast's root: the others send it nothing
      for (size_t i = 0; i < size; ++i) {
        if (i == me) continue;
        RABIT_RETURN_IF_ERROR(
            transport_->Recv(RankOf(lane, static_cast<int>(i)), lane.tag, {}).Wait(lane.deadline));
      }
    }
    if (in[me].data() != nullptr && in[me].data() != out[me].data() && !out[me].empty()) {
      std::memmove(in[me].data(), out[me].data(), in[me].size());
    }
    return Status();
  }

  const std::unique_ptr<Transport> transport_;
};

struct JobOptions {
  ScheduleLimits limits;
  EngineOptions engine;
  ControllerOptions controller;
  bool is_fifo = false;
  // Wraps the transport of a rank; for faults.
  std::function<std::unique_ptr<Transport>(int, std::unique_ptr<Transport>)> wrap;
  std::function<std::unique_ptr<Backend>(int, std::unique_ptr<Backend>)> wrap_backend;
  // Backends behind the first: operations name them by number, and each has its lanes.
  std::function<std::vector<std::unique_ptr<Backend>>(int)> more_backends;
  bool has_nccl = false;  // the last of them is NCCL's, and the default of tensors on a device
  // Behind NCCL's, of that and of the first: what the ranks of several hosts take for allreduces.
  std::function<std::unique_ptr<Backend>(Backend& inside, Backend& between)> hierarchy;
  std::vector<int> host_of;                    // by rank; empty: all are on one host
  bool shares_lanes = false;                   // all backends have the same, as if they were one
  bool shares_memory = false;                  // ranks of one host; what is joined stays small
  std::function<std::string(int)> algorithms;  // a rank's rules; the backend reads none
  std::string routes;                          // over "plain", "backend1", ...
  std::function<std::unique_ptr<CodecSet>(int)> codecs;  // of a rank; empty: all that there are
  std::shared_ptr<const void> ground;                    // EngineParts::ground of every rank
  std::function<Result<std::shared_ptr<DeviceDriver>>()> open_driver;
  int fan_out = 0;    // 0: rank 0 talks to every rank
  int odd_rank = -1;  // a rank whose scheduler has these limits and the other order
  ScheduleLimits odd_limits;
  bool is_odd_fifo = false;
};

inline RankTree OneHostTree(int size, int fan_out) {
  return RankTree::Over({std::vector<int>(static_cast<size_t>(size), 0)}, fan_out);
}

// The ranks of one job, in one process.
class TestJob {
 public:
  explicit TestJob(int size, JobOptions options = {})
      : size_(size),
        options_(std::move(options)),
        tree_(options_.fan_out > 0 ? OneHostTree(size, options_.fan_out) : RankTree::Star(size)),
        hub_(tree_),
        fabric_(size) {}

  std::unique_ptr<Engine> Start(int rank) {
    EngineParts parts;
    parts.ground = options_.ground;
    parts.rank = rank;
    parts.size = size_;
    parts.options = options_.engine;
    const bool is_odd = rank == options_.odd_rank;
    ScheduleLimits limits = is_odd ? options_.odd_limits : options_.limits;
    if (!is_odd) limits.lanes = options_.engine.lanes;
    const bool is_fifo = is_odd ? options_.is_odd_fifo : options_.is_fifo;
    parts.controller = MakeController(hub_.Connect(rank), tree_, options_.controller, kSteadyClock);
    std::unique_ptr<Transport> transport = fabric_.Connect(rank);
    if (options_.wrap) transport = options_.wrap(rank, std::move(transport));
    std::unique_ptr<Backend> backend = std::make_unique<PlainBackend>(std::move(transport));
    if (options_.wrap_backend) backend = options_.wrap_backend(rank, std::move(backend));
    parts.backends.push_back(std::move(backend));
    if (options_.more_backends) {
      for (auto& each : options_.more_backends(rank)) parts.backends.push_back(std::move(each));
    }
    parts.router = MakeRouter(rank, static_cast<int32_t>(parts.backends.size()) - 1);
    if (options_.hierarchy) {
      Backend& inside = *parts.backends.back();
      parts.backends.push_back(options_.hierarchy(inside, *parts.backends.front()));
    }
    LaneClassOptions classes = ClassesOf(*parts.router);
    parts.scheduler = is_fifo ? MakeFifoScheduler(limits, std::move(classes))
                              : MakePriorityScheduler(limits, std::move(classes));
    parts.codecs = options_.codecs ? options_.codecs(rank) : MakeCodecSet();
    parts.open_driver = options_.open_driver;
    parts.local_rank = rank;
    Result<std::unique_ptr<Engine>> engine = Engine::Start(std::move(parts));
    if (!engine.ok()) return nullptr;
    return std::move(engine).value();
  }

  // Starts all ranks, runs `body` on a thread each, stops them.
  void Run(const std::function<void(Engine&, int)>& body) {
    std::vector<std::unique_ptr<Engine>> engines;
    for (int rank = 0; rank < size_; ++rank) engines.push_back(Start(rank));
    RunRanks(size_, [&](int rank) {
      Engine& engine = *engines[static_cast<size_t>(rank)];
      body(engine, rank);
      EXPECT_OK(engine.Stop(After(std::chrono::seconds(20)))) << "rank " << rank;
    });
  }

  LaneClassOptions ClassesOf(const Router& router) const {
    LaneClassOptions classes;
    if (options_.shares_lanes) return classes;
    classes.lanes_started = options_.engine.lanes;
    if (options_.has_nccl) classes.ordered_class = static_cast<int32_t>(router.backends()) - 1;
    for (size_t i = 1; i < router.backends(); ++i) {
      classes.names.push_back("backend" + std::to_string(i));
    }
    classes.class_of = [&router](const ScheduledTensor& tensor, int64_t bytes) {
      return router.BackendOf(tensor, bytes, tensor.is_of_all);
    };
    return classes;
  }

  std::unique_ptr<const Router> MakeRouter(int rank, int32_t others = 0) const {
    RouterOptions router;
    router.others = options_.has_nccl ? others - 1 : others;
    if (options_.has_nccl) router.nccl = {.backend = 1, .executor = others, .is_default = true};
    router.shares_memory = options_.shares_memory;
    router.topology.host_of = options_.host_of;
    router.topology.host_of.resize(static_cast<size_t>(size_), 0);
    if (options_.hierarchy) {
      router.nccl->hierarchy = others + 1;
      const std::vector<std::string> names = {"builtin", "nccl"};
      Result<RouteRules> rules =
          RouteRules::Parse("route", "allreduce:nccl/hierarchical", {names, false});
      EXPECT_OK(rules);
      router.routes = std::move(rules).value();
    }
    if (options_.algorithms) {
      Result<AlgorithmRules> rules = AlgorithmRules::Parse(options_.algorithms(rank), false);
      EXPECT_OK(rules);
      router.rules = std::move(rules).value();
    }
    if (!options_.routes.empty()) {
      std::vector<std::string> names = {"plain"};
      for (int32_t i = 1; i <= others; ++i) names.push_back("backend" + std::to_string(i));
      Result<RouteRules> rules = RouteRules::Parse("routes", options_.routes, {names, false});
      EXPECT_OK(rules);
      router.routes = std::move(rules).value();
    }
    return std::make_unique<const Router>(std::move(router));
  }

  InprocHub& hub() { return hub_; }
  void DropGround() { options_.ground.reset(); }
  int size() const { return size_; }

 private:
  const int size_;
  JobOptions options_;
  const RankTree tree_;
  testing::InprocHub hub_;
  testing::InprocFabric fabric_;
};

template <class T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kInt64;
  return DType::kUint8;
}

template <class T>
Request MakeRequest(std::string name, Kind kind, std::vector<T>& input,
                    std::vector<int64_t> shape = {}) {
  Request request;
  request.name = std::move(name);
  request.signature.kind = kind;
  request.signature.dtype = DTypeOf<T>();
  request.signature.shape =
      shape.empty() ? std::vector<int64_t>{static_cast<int64_t>(input.size())} : std::move(shape);
  request.input = TensorView{input.data(), static_cast<int64_t>(input.size()), DTypeOf<T>(), {}};
  return request;
}

inline Handle SubmitOne(Engine& engine, Request request) {
  Handle handle;
  EXPECT_OK(engine.Submit(std::span(&request, 1), std::span(&handle, 1)));
  return handle;
}

// Submits, waits, returns the output's values; an empty vector after a failure.
template <class T>
std::vector<T> RunOne(Engine& engine, Request request, Status* status = nullptr,
                      HandleOutput* output = nullptr) {
  Handle handle;
  Status result = engine.Submit(std::span(&request, 1), std::span(&handle, 1));
  std::vector<T> values;
  if (result.ok()) result = engine.Wait(handle, After(std::chrono::seconds(20)));
  if (result.ok()) {
    Result<HandleOutput> found = engine.Output(handle);
    result = found.status();
    if (found.ok()) {
      const T* data = static_cast<const T*>(found->view.data);
      values.assign(data, data + found->view.count);
      if (output != nullptr) *output = *found;
    }
  }
  engine.Release(handle);
  if (status != nullptr) {
    *status = result;
  } else {
    EXPECT_OK(result);
  }
  return values;
}

}  // namespace rabit::testing

// Several backends at once: no order of calls makes ranks wait in a circle.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/builtin/builtin_backend.h"
#include "engine/engine.h"
#include "testing/engine_job.h"
#include "testing/meeting.h"
#include "testing/pending_backend.h"
#include "testing/routed_backend.h"
#include "testing/sanitizer.h"
#include "testing/tcp_job.h"
#include "transport/shm/shm_testing.h"

namespace rabit {
namespace {

using testing::InprocFabric;
using testing::JobOptions;
using testing::MakeRequest;
using testing::PendingBackend;
using testing::PlainBackend;
using testing::RoutedBackend;
using testing::TestJob;
using testing::TransportSet;

constexpr size_t kBlock = 32;  // operations that a rank may call in any order
constexpr size_t kInFlightMax = 2 * kBlock;

Deadline InTime() { return After(std::chrono::seconds(120)); }

// What is called in block i is called by every rank before anything of block i + 2.
struct MixedCall {
  Kind kind;
  BackendId backend;
  int32_t priority;
  size_t count;  // elements that each rank brings, for each rank where it sends different ones
  int root;
};

std::vector<MixedCall> Program(uint32_t seed, size_t operations, int size) {
  constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kAllreduce,     Kind::kAllgather,
                             Kind::kBroadcast, Kind::kReduceScatter, Kind::kAlltoall};
  std::minstd_rand random(seed);
  std::vector<MixedCall> program(operations);
  for (MixedCall& each : program) {
    each.kind = kKinds[random() % std::size(kKinds)];
    each.backend = static_cast<BackendId>(random() % 3);
    each.priority = static_cast<int32_t>(random() % 4);
    each.count = random() % 16 == 0 ? random() % 20'000 + 1 : random() % 300 + 1;
    each.root = static_cast<int>(random() % static_cast<uint32_t>(size));
  }
  return program;
}

// Element `at` of what `rank` brings to operation `number`.
int32_t Value(size_t number, int rank, size_t at) {
  return static_cast<int32_t>((number * 31 + static_cast<size_t>(rank) * 7 + at) % 1009);
}

size_t InputCount(const MixedCall& operation, int size) {
  const bool is_for_each =
      operation.kind == Kind::kReduceScatter || operation.kind == Kind::kAlltoall;
  return operation.count * (is_for_each ? static_cast<size_t>(size) : 1);
}

int32_t SumAt(size_t number, int size, size_t at) {
  int32_t sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += Value(number, rank, at);
  return sum;
}

std::vector<int32_t> Expected(const MixedCall& operation, size_t number, int me, int size) {
  const size_t count = operation.count;
  const size_t mine = static_cast<size_t>(me) * count;  // where this rank's part begins
  std::vector<int32_t> all;
  const auto add = [&](size_t each, auto value) {
    for (size_t i = 0; i < each; ++i) all.push_back(value(i));
  };
  switch (operation.kind) {
    case Kind::kBroadcast:
      add(count, [&](size_t i) { return Value(number, operation.root, i); });
      break;
    case Kind::kAllreduce:
      add(count, [&](size_t i) { return SumAt(number, size, i); });
      break;
    case Kind::kReduceScatter:
      add(count, [&](size_t i) { return SumAt(number, size, mine + i); });
      break;
    default:
      for (int rank = 0; rank < size; ++rank) {
        const size_t from = operation.kind == Kind::kAlltoall ? mine : 0;
        add(count, [&](size_t i) { return Value(number, rank, from + i); });
      }
  }
  return all;
}

// One rank: calls its blocks in orders of its own, and waits for what it called in any order.
class Caller {
 public:
  Caller(Engine& engine, const std::vector<MixedCall>& program, int rank, int size, uint32_t seed)
      : engine_(engine),
        program_(program),
        rank_(rank),
        size_(size),
        random_(seed * 64 + static_cast<uint32_t>(rank) + 1) {}

  // How many results were wrong.
  int Run() {
    std::vector<size_t> order(program_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t first = 0; first < order.size(); first += kBlock) {
      const size_t end = std::min(first + kBlock, order.size());
      std::shuffle(order.begin() + static_cast<std::ptrdiff_t>(first),
                   order.begin() + static_cast<std::ptrdiff_t>(end), random_);
    }
    for (const size_t number : order) {
      if (!Call(number)) return wrong_ + 1;
      // What is older than one block has been called by everybody, or will be without this rank.
      while (calls_.size() >= kInFlightMax) FinishAny(kBlock);
    }
    while (!calls_.empty()) FinishAny(calls_.size());
    return wrong_;
  }

 private:
  struct CallOf {
    size_t number;
    std::vector<int32_t> input;
    Handle handle;
  };

  bool Call(size_t number) {
    const MixedCall& operation = program_[number];
    auto call = std::make_unique<CallOf>();
    call->number = number;
    for (size_t i = 0; i < InputCount(operation, size_); ++i) {
      call->input.push_back(Value(number, rank_, i));
    }
    Request request = MakeRequest("op" + std::to_string(number), operation.kind, call->input);
    request.signature.backend = operation.backend;
    request.signature.priority = operation.priority;
    if (operation.kind == Kind::kBroadcast) request.signature.root = operation.root;
    const Status status = engine_.Submit({&request, 1}, {&call->handle, 1});
    EXPECT_OK(status);
    calls_.push_back(std::move(call));
    return status.ok();
  }

  void FinishAny(size_t among) {
    const auto chosen = calls_.begin() + static_cast<std::ptrdiff_t>(random_() % among);
    const CallOf& call = **chosen;
    const Status status = engine_.Wait(call.handle, InTime());
    EXPECT_OK(status);
    const Result<HandleOutput> output = engine_.Output(call.handle);
    bool is_right = status.ok() && output.ok();
    if (is_right) {
      const auto* const data = static_cast<const int32_t*>(output->view.data);
      is_right = std::vector<int32_t>(data, data + output->view.count) ==
                 Expected(program_[call.number], call.number, rank_, size_);
    }
    if (!is_right) ++wrong_;
    engine_.Release(call.handle);
    calls_.erase(chosen);
  }

  Engine& engine_;
  const std::vector<MixedCall>& program_;
  const int rank_;
  const int size_;
  std::minstd_rand random_;
  std::vector<std::unique_ptr<CallOf>> calls_;
  int wrong_ = 0;
};

std::unique_ptr<Backend> Ours(std::unique_ptr<Transport> transport, int size) {
  RouterOptions router;
  router.topology.host_of.assign(static_cast<size_t>(size), 0);
  auto backend = BuiltinBackend::Create(std::move(transport), router.topology);
  EXPECT_OK(backend);
  return std::make_unique<RoutedBackend>(std::move(*backend), std::move(router));
}

// Backend 0: our algorithms over TCP.  1: over shared memory.  2: one that does not block.
struct MixedJob {
  explicit MixedJob(int size) : tcp(testing::MakeTcp(size, [](int) { return TcpOptions{}; })) {
    shm.resize(static_cast<size_t>(size));
    testing::MemoryStore store;
    testing::RunRanks(size, [&](int rank) {
      auto transport = testing::ConnectOneHost(store, rank, size, {});
      EXPECT_OK(transport);
      if (transport.ok()) shm[static_cast<size_t>(rank)] = std::move(*transport);
    });
    options.engine.lanes = 2;
    options.limits.partition_bytes = 16 << 10;
    options.limits.fusion_bytes = 4 << 10;
    options.limits.credit_bytes = 64 << 10;
    options.wrap_backend = [this, size](int rank, std::unique_ptr<Backend>) {
      return Ours(std::move(tcp.ranks[static_cast<size_t>(rank)]), size);
    };
    options.more_backends = [this, size, fabric = std::make_shared<InprocFabric>(size)](int rank) {
      std::vector<std::unique_ptr<Backend>> more;
      more.push_back(Ours(std::move(shm[static_cast<size_t>(rank)]), size));
      more.push_back(
          std::make_unique<PendingBackend>(std::make_unique<PlainBackend>(fabric->Connect(rank))));
      return more;
    };
  }

  TransportSet tcp;
  std::vector<std::unique_ptr<Transport>> shm;
  JobOptions options;
};

void Mix(int size, uint32_t seed, size_t operations) {
  MixedJob job(size);
  ASSERT_EQ(job.tcp.ranks.size(), static_cast<size_t>(size));
  const std::vector<MixedCall> program = Program(seed, operations, size);
  TestJob(size, job.options).Run([&](Engine& engine, int rank) {
    EXPECT_EQ(Caller(engine, program, rank, size, seed).Run(), 0) << "seed " << seed;
  });
}

// The first run is short; --repeat=6 adds five seeds of 10,000 operations each.
void MixNext(int size, uint32_t& runs) {
  const bool is_short = runs == 0;
  const size_t operations = is_short ? (testing::kIsSanitized ? 100 : 500) : 10'000;
  Mix(size, ++runs, operations);
}

TEST(Mixing, random_operations_of_3_backends_in_any_order_on_4_ranks) {
  static uint32_t runs = 0;
  MixNext(4, runs);
}

TEST(Mixing, random_operations_of_3_backends_in_any_order_on_8_ranks) {
  static uint32_t runs = 0;
  MixNext(8, runs);
}

// That the tests above can hang: with blocking calls, each rank waits for what the other has not
// called yet.
TEST(Mixing, blocking_calls_in_different_orders_wait_in_a_circle) {
  MixedJob job(2);
  testing::Meeting both_have_waited(2);
  TestJob(2, job.options).Run([&](Engine& engine, int rank) {
    std::vector<float> values[2] = {std::vector<float>(10, 1.0f), std::vector<float>(10, 1.0f)};
    Handle handles[2];
    const int first = rank;
    const int second = 1 - rank;
    const auto request = [&](int which) {
      Request made = MakeRequest(which == 0 ? "a" : "b", Kind::kAllreduce, values[which]);
      made.signature.backend = which;
      made.output = made.input;
      return made;
    };
    const Status status =
        engine.Run(request(first), handles[first], After(std::chrono::milliseconds(200)));
    EXPECT_EQ(status.code(), Code::kTimedOut);
    both_have_waited.Await();
    EXPECT_OK(engine.Run(request(second), handles[second], InTime()));
    EXPECT_OK(engine.Wait(handles[first], InTime()));
    for (const auto& each : values) EXPECT_EQ(each, std::vector<float>(10, 2.0f));
  });
}

}  // namespace
}  // namespace rabit

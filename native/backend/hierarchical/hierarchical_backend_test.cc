// A hierarchy of NCCL inside the hosts, over the emulation, and of the builtin backend between
// them; ranks are threads.
#include "backend/hierarchical/hierarchical_backend.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/builtin/builtin_backend.h"
#include "base/tree_plan.h"
#include "collective/planned.h"
#include "testing/backend_conformance.h"
#include "testing/emulated_nccl.h"
#include "testing/forwarding_backend.h"
#include "testing/inproc_transport.h"
#include "testing/memory_store.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"
#include "testing/test.h"
#include "testing/transport_wrapper.h"

namespace rabit {
namespace {

using testing::DeviceArray;
using testing::EmulatedTrouble;
using testing::OpenEmulatedDriver;
using testing::RunRanks;
using testing::Soon;

constexpr int64_t kPieceBytes = 1 << 10;

// A rank's hierarchy; what it does not have is done by what it has inside, for all ranks.
class WholeHierarchy final : public testing::ForwardingBackend {
 public:
  WholeHierarchy(std::unique_ptr<Backend> inside, std::unique_ptr<Backend> between,
                 const std::vector<int>& host_of)
      : ForwardingBackend(std::move(inside)),
        between_(std::move(between)),
        hierarchy_("nccl.hierarchical", {inner(), *between_, {host_of}, LinkModel{}, kPieceBytes}) {
  }

  bool works_on_devices() const override { return true; }
  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    return hierarchy_.Allreduce(lane, in_out, op);
  }
  Status Failure(const Group& group) override { return hierarchy_.Failure(group); }
  void Abort(Status why) override { hierarchy_.Abort(std::move(why)); }
  void WriteStatistics(JsonWriter& json) const override { hierarchy_.WriteStatistics(json); }

 private:
  const std::unique_ptr<Backend> between_;
  HierarchicalBackend hierarchy_;
};

// Bytes by sender and receiver.
struct Traffic {
  explicit Traffic(int ranks)
      : size(ranks), sent(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)) {}
  std::atomic<int64_t>& Between(int from, int to) {
    return sent[static_cast<size_t>(from) * static_cast<size_t>(size) + static_cast<size_t>(to)];
  }

  const int size;
  std::vector<std::atomic<int64_t>> sent;
};

class CountedTransport final : public TransportWrapper {
 public:
  CountedTransport(std::unique_ptr<Transport> inner, std::shared_ptr<Traffic> traffic)
      : TransportWrapper(std::move(inner)), traffic_(std::move(traffic)) {}

  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    traffic_->Between(rank(), peer) += static_cast<int64_t>(buffer.size());
    return inner().Send(peer, tag, buffer);
  }

 private:
  const std::shared_ptr<Traffic> traffic_;
};

// Of all jobs of this process.
Store& StoreOfHierarchies() {
  static auto* const store = new testing::MemoryStore;
  return *store;
}

std::vector<std::unique_ptr<WholeHierarchy>> MakeHierarchies(
    const std::vector<int>& host_of, const std::shared_ptr<Traffic>& traffic) {
  static std::atomic<int> jobs{0};
  const std::string key = "hierarchy" + std::to_string(++jobs);
  const int size = static_cast<int>(host_of.size());
  testing::InprocFabric fabric(size);
  std::vector<std::unique_ptr<WholeHierarchy>> backends;
  for (int rank = 0; rank < size; ++rank) {
    std::unique_ptr<Transport> transport;
    if (size > 1) transport = std::make_unique<CountedTransport>(fabric.Connect(rank), traffic);
    auto between =
        BuiltinBackend::Create(std::move(transport), Topology::Alike(host_of, Processors{0, 1}));
    EXPECT_OK(between);
    auto inside = std::make_unique<NcclBackend>(testing::OpenEmulatedNccl(), &StoreOfHierarchies(),
                                                NcclOptions{.rank = rank, .key = key});
    backends.push_back(
        std::make_unique<WholeHierarchy>(std::move(inside), std::move(between).value(), host_of));
  }
  return backends;
}

[[maybe_unused]] const int kHierarchy =
    testing::RegisterBackendConformance("HierarchicalBackend", [](int size) {
      std::vector<int> host_of;
      for (int rank = 0; rank < size; ++rank) host_of.push_back(rank < 2 ? 0 : 1);
      std::vector<std::unique_ptr<Backend>> backends;
      int rank = 0;
      for (auto& each : MakeHierarchies(host_of, std::make_shared<Traffic>(size))) {
        backends.push_back(std::make_unique<testing::HostedBackend>(std::move(each), rank++));
      }
      return backends;
    });

struct HierarchyCase {
  std::string plan = {};  // lines of a plan of all ranks; empty: none is in force
  size_t pinned_bytes = 1 << 26;
  // Statistics of rank 0, and what was sent between hosts.
  std::string* statistics = nullptr;
  std::shared_ptr<Traffic> traffic = nullptr;
};

// What every rank has in the end; element i of rank r is `value(r, i)`.
template <class T>
std::vector<std::vector<T>> SumsOf(const std::vector<int>& host_of, size_t count, DType dtype,
                                   ReduceOp op, double factor,
                                   const std::function<T(int, size_t)>& value,
                                   const HierarchyCase& how = {}) {
  const int size = static_cast<int>(host_of.size());
  const auto backends = MakeHierarchies(
      host_of, how.traffic == nullptr ? std::make_shared<Traffic>(size) : how.traffic);
  std::shared_ptr<const TreePlan> plan;
  if (!how.plan.empty()) {
    auto parsed = TreePlan::Parse("size " + std::to_string(size) + "\n" + how.plan, size);
    EXPECT_OK(parsed);
    plan = std::move(parsed).value();
  }
  testing::emulation().rabit_emulated_devices(std::max(size, 2));
  std::vector<std::vector<T>> seen(host_of.size());
  RunRanks(size, [&](int rank) {
    const auto me = static_cast<size_t>(rank);
    const auto driver = OpenEmulatedDriver();
    const DeviceStream stream = MakeStream(driver, rank).value();
    const DeviceEvent event = MakeEvent(driver, rank).value();
    Group group = testing::WorldOf(size, rank);
    group.plan = plan;
    const bool has_trees = plan != nullptr && plan->Has(Kind::kAllreduce, 0);
    const std::string_view algorithm = has_trees ? kPlanAlgorithm : "hierarchical";
    const DevicePlace place{driver, rank, stream.get(), factor,
                            std::make_shared<PinnedPool>(how.pinned_bytes)};
    std::vector<T> values;
    for (size_t i = 0; i < count; ++i) values.push_back(value(rank, i));
    const DeviceArray<T> array(rank, count);
    array.Launch(values, stream.get());
    const LaneContext lane{0, Tag{0}, Soon(), group, Waiter::kBackground, algorithm, &place};
    const TensorView view{array.data(), static_cast<int64_t>(count), dtype, {}};
    EXPECT_OK(backends[me]->Allreduce(lane, view, op).Wait(Soon()));
    EXPECT_OK(driver->Record(rank, event.get(), stream.get()));
    EXPECT_OK(WaitOnStream(*backends[me], group, place, event.get(), Soon()));
    seen[me] = array.Read(stream.get());
  });
  if (how.statistics == nullptr) return seen;
  JsonWriter json;
  json.BeginObject();
  backends[0]->WriteStatistics(json);
  *how.statistics = json.EndObject().Take();
  return seen;
}

TEST(HierarchicalBackend, every_rank_has_the_same_sum_wherever_the_ranks_are) {
  const std::function<int32_t(int, size_t)> value = [](int rank, size_t i) {
    return static_cast<int32_t>(i % 1000) * (rank + 1);
  };
  for (const std::vector<int>& host_of : std::vector<std::vector<int>>{
           {0, 1}, {0, 0, 1, 1}, {0, 1, 1, 0}, {0, 0, 0, 1}, {0, 1, 2, 1, 0}}) {
    for (const size_t count : {size_t{1}, size_t{7}, size_t{1003}, size_t{10'001}}) {
      EmulatedTrouble trouble(1);
      const auto seen = SumsOf(host_of, count, DType::kInt32, ReduceOp::kSum, 1.0, value);
      const int times = static_cast<int>(host_of.size() * (host_of.size() + 1) / 2);
      std::vector<int32_t> expected;
      for (size_t i = 0; i < count; ++i) expected.push_back(static_cast<int32_t>(i % 1000) * times);
      for (const auto& each : seen) EXPECT_TRUE(each == expected) << count << " elements";
    }
  }
}

// Sums of floats are rounded as the parts are added, for all ranks alike.
TEST(HierarchicalBackend, every_rank_has_the_same_bits) {
  EmulatedTrouble trouble(2, 100);
  const std::function<float(int, size_t)> value = [](int rank, size_t i) {
    return 1.0f / static_cast<float>(1 + rank + static_cast<int>(i));
  };
  const auto seen = SumsOf({0, 1, 0, 0, 1}, 10'001, DType::kFloat32, ReduceOp::kSum, 1.0, value);
  for (const auto& each : seen) EXPECT_TRUE(each == seen[0]);
  EXPECT_NE(seen[0][0], seen[0][1]);
}

TEST(HierarchicalBackend, averages_and_factors_count_all_ranks_of_all_hosts) {
  EmulatedTrouble trouble(3, 100);
  const std::function<float(int, size_t)> value = [](int rank, size_t) { return rank + 1.0f; };
  const auto one = [&](ReduceOp op, double factor) {
    return SumsOf({0, 0, 0, 1}, 9, DType::kFloat32, op, factor, value)[3];
  };

  EXPECT_EQ(one(ReduceOp::kAverage, 1.0), std::vector<float>(9, 2.5f));
  EXPECT_EQ(one(ReduceOp::kAverage, 2.0), std::vector<float>(9, 5.0f));
  EXPECT_EQ(one(ReduceOp::kSum, 0.5), std::vector<float>(9, 5.0f));
  EXPECT_EQ(one(ReduceOp::kProduct, 1.0), std::vector<float>(9, 24.0f));
}

// The other hosts wait for each piece.
TEST(HierarchicalBackend, a_budget_of_pinned_memory_without_room_fails_nothing) {
  EmulatedTrouble trouble(5, 100);
  const std::function<float(int, size_t)> value = [](int rank, size_t) { return rank + 1.0f; };
  const auto seen = SumsOf({0, 0, 1, 1}, 10'001, DType::kFloat32, ReduceOp::kSum, 1.0, value,
                           {.pinned_bytes = 0});
  for (const auto& each : seen) EXPECT_EQ(each, std::vector<float>(10'001, 10.0f));
}

TEST(HierarchicalBackend, statistics_say_what_has_crossed) {
  EmulatedTrouble trouble(4);
  std::string statistics;
  const std::function<uint8_t(int, size_t)> one = [](int, size_t) { return uint8_t{1}; };
  (void)SumsOf({0, 0, 1, 1}, 3 << 10, DType::kUint8, ReduceOp::kSum, 1.0, one,
               {.statistics = &statistics});

  // Half of each of three pieces is rank 0's.
  EXPECT_EQ(statistics, "{\"pieces\":3,\"bytes_between\":1536}");
}

using ByHost = std::map<std::pair<int, int>, int64_t>;

// Bytes by host, of one float32 allreduce along `plan`.
ByHost BytesBetween(const std::vector<int>& host_of, size_t count, const std::string& plan) {
  const int size = static_cast<int>(host_of.size());
  const auto traffic = std::make_shared<Traffic>(size);
  const std::function<float(int, size_t)> value = [](int rank, size_t) { return rank + 1.0f; };
  const auto seen = SumsOf(host_of, count, DType::kFloat32, ReduceOp::kSum, 1.0, value,
                           {.plan = plan, .traffic = traffic});
  const auto sum = static_cast<float>(size * (size + 1) / 2);
  for (const auto& each : seen) EXPECT_TRUE(each == std::vector<float>(count, sum));
  ByHost found;
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const int64_t bytes = traffic->Between(from, to);
      if (bytes == 0) continue;
      found[{host_of[static_cast<size_t>(from)], host_of[static_cast<size_t>(to)]}] += bytes;
    }
  }
  return found;
}

TEST(HierarchicalBackend, between_hosts_the_data_takes_the_links_of_the_plan) {
  EmulatedTrouble trouble(6, 100);
  constexpr int64_t kBytes = 10'240 * sizeof(float);
  // Two hosts: all of it crosses once each way.
  EXPECT_TRUE(BytesBetween({0, 0, 1, 1}, 10'240, "allreduce 0 1 up -1 0 0 2 down -1 0 0 2\n") ==
              (ByHost{{{0, 1}, kBytes}, {{1, 0}, kBytes}}));
  // A line: nothing goes from end to end.
  EXPECT_TRUE(BytesBetween({0, 0, 1, 1, 2, 2}, 10'240,
                           "allreduce 2 1 up 2 0 -1 2 2 4 down 2 0 -1 2 2 4\n") ==
              (ByHost{{{0, 1}, kBytes}, {{1, 0}, kBytes}, {{1, 2}, kBytes}, {{2, 1}, kBytes}}));
}

// Three quarters go by host 1, and a quarter by host 0; each of the two ranks of a host has a half.
TEST(HierarchicalBackend, trees_of_a_plan_share_the_links_by_weight) {
  EmulatedTrouble trouble(7, 100);
  constexpr int64_t kBytes = 10'240 * sizeof(float);
  const std::string plan =
      "allreduce 2 3 up 2 0 -1 2 2 4 down 2 0 -1 2 2 4\n"
      "allreduce 1 1 up 1 -1 3 1 5 1 down 1 -1 3 1 5 1\n";
  EXPECT_TRUE(BytesBetween({0, 0, 1, 1, 2, 2}, 10'240, plan) ==
              (ByHost{{{0, 1}, kBytes},
                      {{1, 0}, kBytes},
                      {{1, 2}, kBytes / 4 * 3},
                      {{2, 1}, kBytes / 4 * 3},
                      {{0, 2}, kBytes / 4},
                      {{2, 0}, kBytes / 4}}));
}

TEST(HierarchicalBackend, without_trees_hosts_pass_much_around_a_ring_in_the_order_of_the_plan) {
  EmulatedTrouble trouble(9, 100);
  constexpr int64_t kCount = 8 * 2 * 3 * (16 << 10) / sizeof(float);
  constexpr int64_t kPassed = kCount * sizeof(float) / 3 * 4;  // two thirds, there and back
  EXPECT_TRUE(BytesBetween({0, 0, 1, 1, 2, 2}, kCount, "") ==
              (ByHost{{{0, 1}, kPassed}, {{1, 2}, kPassed}, {{2, 0}, kPassed}}));
  EXPECT_TRUE(BytesBetween({0, 0, 1, 1, 2, 2}, kCount, "order 0 1 4 5 2 3\n") ==
              (ByHost{{{0, 2}, kPassed}, {{2, 1}, kPassed}, {{1, 0}, kPassed}}));
}

TEST(HierarchicalBackend, sums_along_a_plan_have_the_same_bits_on_all_ranks_and_in_each_run) {
  EmulatedTrouble trouble(8, 100);
  const std::function<float(int, size_t)> value = [](int rank, size_t i) {
    return 1.0f / static_cast<float>(1 + rank + static_cast<int>(i));
  };
  const std::string plan =
      "allreduce 0 2 up -1 0 1 4 0 down -1 0 1 4 0\n"
      "allreduce 2 1 up 2 0 -1 2 1 down 2 0 -1 2 1\n";
  const auto run = [&] {
    return SumsOf({0, 1, 2, 1, 0}, 10'001, DType::kFloat32, ReduceOp::kSum, 1.0, value,
                  {.plan = plan});
  };
  const auto seen = run();
  for (const auto& each : seen) EXPECT_TRUE(each == seen[0]);
  EXPECT_TRUE(run() == seen);
  EXPECT_NE(seen[0][0], seen[0][1]);
}

}  // namespace
}  // namespace rabit

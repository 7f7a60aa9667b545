#include "backend/builtin/builtin_backend.h"

#include <cstring>

#include "testing/backend_conformance.h"
#include "testing/inproc_transport.h"
#include "testing/run_ranks.h"
#include "testing/test.h"
#include "testing/transport_wrapper.h"

namespace rabit {
namespace {

using testing::Member;
using testing::Values;

const Processors kTwoProcessors{0, 1};

std::vector<std::unique_ptr<Backend>> MakeBackends(int size, const std::vector<int>& host_of,
                                                   const BuiltinOptions& options) {
  testing::InprocFabric fabric(size);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < size; ++rank) {
    auto backend = BuiltinBackend::Create(size == 1 ? nullptr : fabric.Connect(rank),
                                          Topology::Alike(host_of, kTwoProcessors), options);
    EXPECT_OK(backend);
    backends.push_back(std::move(backend).value());
  }
  return backends;
}

BuiltinOptions Rules(std::string algorithms) {
  BuiltinOptions options;
  options.algorithms = std::move(algorithms);
  return options;
}

[[maybe_unused]] const int kByCost =
    testing::RegisterBackendConformance("BuiltinBackendByCost", [](int size) {
      return MakeBackends(size, std::vector<int>(static_cast<size_t>(size), 0), {});
    });
[[maybe_unused]] const int kTwoHosts =
    testing::RegisterBackendConformance("BuiltinBackendTwoHosts", [](int size) {
      std::vector<int> host_of;
      for (int rank = 0; rank < size; ++rank) host_of.push_back(rank < 2 ? 0 : 1);
      return MakeBackends(size, host_of, {});
    });
[[maybe_unused]] const int kByRules =
    testing::RegisterBackendConformance("BuiltinBackendByRules", [](int size) {
      return MakeBackends(size, std::vector<int>(static_cast<size_t>(size), 0),
                          Rules("ring;allgather:0-inf@ring;broadcast:0-inf@chain"));
    });

[[maybe_unused]] const int kOnePerHost =
    testing::RegisterBackendConformance("BuiltinBackendOnePerHost", [](int size) {
      std::vector<int> host_of;
      for (int rank = 0; rank < size; ++rank) host_of.push_back(rank);
      return MakeBackends(size, host_of, {});
    });

// Notes who waits for its operations.
class NotingTransport final : public TransportWrapper {
 public:
  NotingTransport(std::unique_ptr<Transport> inner, std::vector<std::pair<int, Waiter>>& waits)
      : TransportWrapper(std::move(inner)), waits_(waits) {}
  void SetWaiter(int stream, Waiter waiter) override { waits_.emplace_back(stream, waiter); }

 private:
  std::vector<std::pair<int, Waiter>>& waits_;
};

TEST(BuiltinBackend, tells_the_transport_who_waits_on_which_stream) {
  testing::InprocFabric fabric(2);
  std::vector<std::pair<int, Waiter>> waits[2];
  testing::RunRanks(2, [&](int rank) {
    auto& mine = waits[static_cast<size_t>(rank)];
    auto backend =
        BuiltinBackend::Create(std::make_unique<NotingTransport>(fabric.Connect(rank), mine),
                               Topology::Alike({0, 0}, kTwoProcessors), {});
    ASSERT_OK(backend);
    const Group world = testing::WorldOf(2, rank);
    for (const Waiter waiter : {Waiter::kBackground, Waiter::kCaller}) {
      const LaneContext lane{3, MakeTag(3, mine.size() + 1), After(std::chrono::seconds(20)), world,
                             waiter};
      EXPECT_OK((*backend)->Barrier(lane));
    }
  });
  const std::vector<std::pair<int, Waiter>> expected = {{3, Waiter::kBackground},
                                                        {3, Waiter::kCaller}};
  EXPECT_TRUE(waits[0] == expected);
  EXPECT_TRUE(waits[1] == expected);
}

std::unique_ptr<BuiltinBackend> One(std::vector<int> host_of, BuiltinOptions options) {
  static testing::InprocFabric fabric(4);
  auto transport = host_of.size() == 1 ? nullptr : fabric.Connect(0);
  auto backend = BuiltinBackend::Create(std::move(transport),
                                        Topology::Alike(std::move(host_of), kTwoProcessors),
                                        std::move(options));
  EXPECT_OK(backend);
  return std::move(backend).value();
}

CollectiveSpec AllreduceOf(DType dtype, int64_t bytes) {
  return {Kind::kAllreduce, dtype, {}, ReduceOp::kSum, bytes / static_cast<int64_t>(SizeOf(dtype))};
}

TEST(BuiltinBackend, rules_choose_by_size) {
  const auto backend =
      One({0, 0, 0, 0}, Rules("allreduce:0-64K@recursive_doubling;allreduce:64K-inf@tree"));
  const Group world = testing::WorldOf(4, 0);
  EXPECT_EQ(backend->AlgorithmFor(AllreduceOf(DType::kFloat32, (64 << 10) - 4), world),
            "recursive_doubling");
  EXPECT_EQ(backend->AlgorithmFor(AllreduceOf(DType::kFloat32, 64 << 10), world), "tree");
}

TEST(BuiltinBackend, several_hosts_with_several_ranks_use_the_hierarchy) {
  const Group world = testing::WorldOf(4, 0);
  const CollectiveSpec large = AllreduceOf(DType::kFloat32, 1 << 20);
  EXPECT_EQ(One({0, 0, 1, 1}, {})->AlgorithmFor(large, world), "hierarchical");
  EXPECT_NE(One({0, 1, 2, 3}, {})->AlgorithmFor(large, world), "hierarchical");
  EXPECT_NE(One({0, 0, 0, 0}, {})->AlgorithmFor(large, world), "hierarchical");
  EXPECT_NE(One({0, 0, 1, 1}, {})->AlgorithmFor(AllreduceOf(DType::kFloat16, 1 << 20), world),
            "hierarchical");
  BuiltinOptions deterministic;
  deterministic.is_deterministic = true;
  EXPECT_NE(One({0, 0, 1, 1}, deterministic)->AlgorithmFor(large, world), "hierarchical");
}

TEST(BuiltinBackend, hosts_of_one_rank_each_form_a_ring_for_all_but_small_tensors) {
  const Group world = testing::WorldOf(4, 0);
  const CollectiveSpec large = AllreduceOf(DType::kFloat32, 64 << 10);
  EXPECT_EQ(One({0, 1, 2, 3}, {})->AlgorithmFor(large, world), "ring");
  EXPECT_NE(One({0, 0, 0, 0}, {})->AlgorithmFor(large, world), "ring");
  EXPECT_NE(One({0, 1, 2, 3}, {})->AlgorithmFor(AllreduceOf(DType::kFloat32, 32 << 10), world),
            "ring");
  EXPECT_NE(One({0, 1, 2, 3}, {})->AlgorithmFor(AllreduceOf(DType::kBfloat16, 1 << 20), world),
            "ring");  // would round at every step
  BuiltinOptions deterministic;
  deterministic.is_deterministic = true;
  EXPECT_EQ(One({0, 1, 2, 3}, deterministic)->AlgorithmFor(large, world), "direct");
}

// What ranks on these hosts choose after they have measured their links.
std::vector<std::string> ChosenAfterMeasuring(const std::vector<int>& host_of, int64_t bytes,
                                              const BuiltinOptions& options) {
  const int size = static_cast<int>(host_of.size());
  const auto backends = MakeBackends(size, host_of, options);
  std::vector<std::string> chosen(host_of.size());
  testing::RunRanks(size, [&](int rank) {
    auto& backend = static_cast<BuiltinBackend&>(*backends[static_cast<size_t>(rank)]);
    EXPECT_OK(backend.MeasureLinks(std::chrono::milliseconds(rank == 0 ? 4 : 0),
                                   After(std::chrono::seconds(60))));
    chosen[static_cast<size_t>(rank)] =
        backend.AlgorithmFor(AllreduceOf(DType::kFloat32, bytes), testing::WorldOf(size, rank));
  });
  return chosen;
}

TEST(BuiltinBackend, ranks_that_measured_their_links_choose_alike) {
  for (const std::vector<int>& host_of :
       {std::vector<int>{0, 0}, {0, 0, 0}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 1}, {0, 0, 1}}) {
    for (int64_t bytes = 4; bytes <= 1 << 28; bytes *= 16) {
      const std::vector<std::string> chosen = ChosenAfterMeasuring(host_of, bytes, {});
      for (const std::string& each : chosen) EXPECT_EQ(each, chosen[0]) << bytes;
    }
  }
}

TEST(BuiltinBackend, rules_and_determinism_win_over_what_was_measured) {
  BuiltinOptions deterministic;
  deterministic.is_deterministic = true;
  for (const std::string& each : ChosenAfterMeasuring({0, 0, 0}, 1 << 20, Rules("tree"))) {
    EXPECT_EQ(each, "tree");
  }
  for (const std::string& each : ChosenAfterMeasuring({0, 0, 0}, 1 << 20, deterministic)) {
    EXPECT_TRUE(FindAllreduceAlgorithm(each)->is_rank_ordered) << each;
  }
}

TEST(BuiltinBackend, deterministic_jobs_sum_in_rank_order_at_every_size) {
  BuiltinOptions options;
  options.is_deterministic = true;
  const auto backend = One({0, 0, 0, 0}, options);
  for (int64_t bytes = 4; bytes <= 1 << 28; bytes *= 4) {
    const std::string name =
        backend->AlgorithmFor(AllreduceOf(DType::kFloat32, bytes), testing::WorldOf(4, 0));
    EXPECT_TRUE(FindAllreduceAlgorithm(name)->is_rank_ordered) << name;
  }
}

TEST(BuiltinBackend, device_memory_is_refused) {
  CollectiveSpec spec = AllreduceOf(DType::kFloat32, 64);
  spec.device.kind = DeviceKind::kCuda;
  const auto cost = One({0, 0, 0, 0}, {})->CostMicros(spec, testing::WorldOf(4, 0));
  EXPECT_EQ(cost.status().code(), Code::kUnsupported);
}

TEST(BuiltinBackend, a_root_outside_the_group_is_an_error) {
  const auto backend = One({0}, {});
  Member me(*backend, testing::WorldOf(1, 0), 0);
  Values values(3);
  const Status status = backend->Broadcast(me.Next(), testing::BytesOf(values), 1);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(status.message().find("root is 1") != std::string::npos) << status;
}

TEST(BuiltinBackend, statistics_name_the_algorithm_and_the_transport) {
  const auto backends = MakeBackends(2, {0, 0}, Rules("ring"));
  testing::RunRanks(2, [&](int rank) {
    Member me(*backends[static_cast<size_t>(rank)], testing::WorldOf(2, rank), 0);
    Values values(100);
    EXPECT_OK(me.backend().Allreduce(me.Next(), testing::ViewOf(values), ReduceOp::kSum));
  });
  JsonWriter writer;
  backends[0]->WriteStatistics(writer);
  const std::string json = writer.Take();
  EXPECT_TRUE(json.find("\"allreduce/ring\":{\"calls\":1,\"bytes\":400") != std::string::npos)
      << json;
  EXPECT_TRUE(json.find("\"name\":\"inproc\",\"bytes_sent\":400") != std::string::npos) << json;
}

TEST(BuiltinBackend, a_topology_of_another_size_is_refused) {
  const auto backend = BuiltinBackend::Create(nullptr, Topology::Alike({0, 0}, kTwoProcessors), {});
  EXPECT_EQ(backend.status().code(), Code::kInvalidArgument);
}

// ---- Rules -----------------------------------------------------------------------------------

void ExpectWrong(std::string_view text, const std::string& position, const std::string& why) {
  const auto rules = AlgorithmRules::Parse(text, false);
  ASSERT_FALSE(rules.ok());
  const std::string message = rules.status().message();
  EXPECT_TRUE(message.find("position " + position + ":") != std::string::npos) << message;
  EXPECT_TRUE(message.find(why) != std::string::npos) << message;
}

TEST(AlgorithmRules, the_first_rule_that_fits_is_used) {
  const auto rules = AlgorithmRules::Parse(
      "allreduce:0-1K@tree;allreduce:512-2M@ring;allgather:0-inf@direct;double_tree", false);
  ASSERT_OK(rules);
  EXPECT_EQ(rules->Find(Kind::kAllreduce, 1023), "tree");
  EXPECT_EQ(rules->Find(Kind::kAllreduce, 1024), "ring");
  EXPECT_EQ(rules->Find(Kind::kAllreduce, 2 << 20), "double_tree");
  EXPECT_EQ(rules->Find(Kind::kAllgather, 5), "direct");
  EXPECT_EQ(rules->Find(Kind::kBroadcast, 5), "");
}

TEST(AlgorithmRules, mistakes_name_the_position_and_what_is_known) {
  ExpectWrong("rnig", "1", "unknown allreduce algorithm 'rnig'; known: direct, gather_all, ring");
  ExpectWrong("allreduce:0-64K@rnig", "17", "'rnig'; known: direct");
  ExpectWrong("ring;allgahter:0-1@ring", "6",
              "'allgahter'; known: allreduce, allgather, broadcast");
  ExpectWrong("allreduce@ring", "10", "':' is missing");
  ExpectWrong("allreduce:0@ring", "12", "'-' is missing");
  ExpectWrong("allreduce:0-64K", "16", "'@' is missing");
  ExpectWrong("allreduce:0-64KB@ring", "13", "'64KB' is not a number of bytes");
  ExpectWrong("allreduce:-1-4@ring", "11", "'' is not a number of bytes");
  ExpectWrong("allreduce:0-99999999999G@ring", "13", "is not a number of bytes");
  ExpectWrong("allreduce:8K-4K@ring", "11", "the range is empty");
  ExpectWrong("ring;", "6", "unknown allreduce algorithm ''");
  ExpectWrong("broadcast:0-inf@ring", "17", "known: binomial, chain");
}

TEST(AlgorithmRules, deterministic_jobs_refuse_other_orders) {
  const auto rules = AlgorithmRules::Parse("direct;allreduce:0-1K@ring", true);
  ASSERT_FALSE(rules.ok());
  EXPECT_TRUE(rules.status().message().find("position 23: 'ring' does not sum in rank order") !=
              std::string::npos)
      << rules.status();
  EXPECT_OK(AlgorithmRules::Parse("gather_all", true));
}

}  // namespace
}  // namespace rabit

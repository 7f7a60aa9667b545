#include "backend/builtin/builtin_backend.h"

#include <set>
#include <tuple>

#include "route/router.h"
#include "testing/backend_conformance.h"
#include "testing/inproc_transport.h"
#include "testing/pending_backend.h"
#include "testing/routed_backend.h"
#include "testing/run_ranks.h"
#include "testing/test.h"
#include "testing/transport_wrapper.h"

namespace rabit {
namespace {

using testing::Member;
using testing::Values;

const Processors kTwoProcessors{0, 1};

RouterOptions RouterOn(const std::vector<int>& host_of, std::string_view algorithms) {
  RouterOptions options;
  options.topology = Topology::Alike(host_of, kTwoProcessors);
  Result<AlgorithmRules> rules = AlgorithmRules::Parse(algorithms, false);
  EXPECT_OK(rules);
  options.rules = std::move(rules).value();
  return options;
}

std::vector<std::unique_ptr<Backend>> MakeBackends(int size, const std::vector<int>& host_of,
                                                   std::string_view algorithms) {
  testing::InprocFabric fabric(size);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < size; ++rank) {
    auto backend = BuiltinBackend::Create(size == 1 ? nullptr : fabric.Connect(rank),
                                          Topology::Alike(host_of, kTwoProcessors));
    EXPECT_OK(backend);
    backends.push_back(std::make_unique<testing::RoutedBackend>(std::move(backend).value(),
                                                                RouterOn(host_of, algorithms)));
  }
  return backends;
}

[[maybe_unused]] const int kByCost =
    testing::RegisterBackendConformance("BuiltinBackendByCost", [](int size) {
      return MakeBackends(size, std::vector<int>(static_cast<size_t>(size), 0), "");
    });
[[maybe_unused]] const int kTwoHosts =
    testing::RegisterBackendConformance("BuiltinBackendTwoHosts", [](int size) {
      std::vector<int> host_of;
      for (int rank = 0; rank < size; ++rank) host_of.push_back(rank < 2 ? 0 : 1);
      return MakeBackends(size, host_of, "");
    });
[[maybe_unused]] const int kByRules =
    testing::RegisterBackendConformance("BuiltinBackendByRules", [](int size) {
      return MakeBackends(size, std::vector<int>(static_cast<size_t>(size), 0),
                          "ring;allgather:0-inf@ring;broadcast:0-inf@chain");
    });

// The suite holds as well for a backend that does not block.
[[maybe_unused]] const int kPending =
    testing::RegisterBackendConformance("PendingBackend", [](int size) {
      auto backends = MakeBackends(size, std::vector<int>(static_cast<size_t>(size), 0), "");
      for (std::unique_ptr<Backend>& each : backends) {
        each = std::make_unique<testing::PendingBackend>(std::move(each));
      }
      return backends;
    });

[[maybe_unused]] const int kOnePerHost =
    testing::RegisterBackendConformance("BuiltinBackendOnePerHost", [](int size) {
      std::vector<int> host_of;
      for (int rank = 0; rank < size; ++rank) host_of.push_back(rank);
      return MakeBackends(size, host_of, "");
    });

using Waits = std::vector<std::tuple<int, Waiter, size_t>>;

// Notes who waits for its operations, and for how much.
class NotingTransport final : public TransportWrapper {
 public:
  NotingTransport(std::unique_ptr<Transport> inner, Waits& waits)
      : TransportWrapper(std::move(inner)), waits_(waits) {}
  void SetWaiter(int stream, Waiter waiter, size_t call_bytes) override {
    waits_.emplace_back(stream, waiter, call_bytes);
  }

 private:
  Waits& waits_;
};

TEST(BuiltinBackend, tells_the_transport_who_waits_on_which_stream_for_how_much) {
  testing::InprocFabric fabric(2);
  Waits waits[2];
  testing::RunRanks(2, [&](int rank) {
    auto& mine = waits[static_cast<size_t>(rank)];
    auto backend =
        BuiltinBackend::Create(std::make_unique<NotingTransport>(fabric.Connect(rank), mine),
                               Topology::Alike({0, 0}, kTwoProcessors));
    ASSERT_OK(backend);
    const Group world = testing::WorldOf(2, rank);
    testing::Values values(50);
    for (const Waiter waiter : {Waiter::kBackground, Waiter::kCaller}) {
      LaneContext lane{3, MakeTag(3, mine.size() + 1), After(std::chrono::seconds(20)), world,
                       waiter};
      EXPECT_OK(testing::Over((*backend)->Barrier(lane)));
      lane.tag = MakeTag(3, mine.size() + 1);
      lane.algorithm = "direct";
      EXPECT_OK(
          testing::Over((*backend)->Allreduce(lane, testing::ViewOf(values), ReduceOp::kSum)));
    }
  });
  const Waits expected = {{3, Waiter::kBackground, 0},
                          {3, Waiter::kBackground, 200},
                          {3, Waiter::kCaller, 0},
                          {3, Waiter::kCaller, 200}};
  EXPECT_TRUE(waits[0] == expected);
  EXPECT_TRUE(waits[1] == expected);
}

// The links of ranks on these hosts, as every rank has measured them.
std::vector<LinkCosts> MeasuredOn(const std::vector<int>& host_of) {
  const int size = static_cast<int>(host_of.size());
  testing::InprocFabric fabric(size);
  std::vector<std::unique_ptr<BuiltinBackend>> backends;
  for (int rank = 0; rank < size; ++rank) {
    auto backend =
        BuiltinBackend::Create(fabric.Connect(rank), Topology::Alike(host_of, kTwoProcessors));
    EXPECT_OK(backend);
    backends.push_back(std::move(backend).value());
  }
  std::vector<LinkCosts> links(host_of.size());
  testing::RunRanks(size, [&](int rank) {
    BuiltinBackend& backend = *backends[static_cast<size_t>(rank)];
    EXPECT_OK(backend.MeasureLinks(std::chrono::milliseconds(rank == 0 ? 4 : 0),
                                   After(std::chrono::seconds(60))));
    links[static_cast<size_t>(rank)] = backend.links();
  });
  return links;
}

TEST(BuiltinBackend, ranks_that_measured_their_links_choose_alike) {
  for (const std::vector<int>& host_of :
       {std::vector<int>{0, 0}, {0, 0, 0}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 1}, {0, 0, 1}}) {
    const std::vector<LinkCosts> links = MeasuredOn(host_of);
    const int size = static_cast<int>(host_of.size());
    for (int64_t bytes = 4; bytes <= 1 << 28; bytes *= 16) {
      std::set<std::string_view> chosen;
      for (int rank = 0; rank < size; ++rank) {
        RouterOptions options = RouterOn(host_of, "");
        options.links = links[static_cast<size_t>(rank)];
        const Router router(std::move(options));
        chosen.insert(router.Of(Work(), {bytes}, testing::WorldOf(size, rank))->algorithm);
      }
      EXPECT_EQ(chosen.size(), 1u) << bytes;
    }
  }
}

TEST(BuiltinBackend, an_algorithm_that_it_does_not_have_is_an_error) {
  const auto backend = BuiltinBackend::Create(nullptr, Topology::Alike({0}, kTwoProcessors));
  ASSERT_OK(backend);
  const Group pair = testing::WorldOf(2, 0);
  LaneContext lane{0, Tag{0}, After(std::chrono::seconds(20)), pair};
  lane.algorithm = "rnig";
  Values values(3);
  const Status status =
      testing::Over((*backend)->Allreduce(lane, testing::ViewOf(values), ReduceOp::kSum));
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_TRUE(status.message().find("'rnig'") != std::string::npos) << status;
}

TEST(BuiltinBackend, a_root_outside_the_group_is_an_error) {
  const auto backends = MakeBackends(1, {0}, "");
  Member me(*backends[0], testing::WorldOf(1, 0), 0);
  Values values(3);
  const Status status =
      testing::Over(backends[0]->Broadcast(me.Next(), testing::BytesOf(values), 1));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(status.message().find("root is 1") != std::string::npos) << status;
}

TEST(BuiltinBackend, statistics_name_the_transport) {
  const auto backends = MakeBackends(2, {0, 0}, "ring");
  testing::RunRanks(2, [&](int rank) {
    Member me(*backends[static_cast<size_t>(rank)], testing::WorldOf(2, rank), 0);
    Values values(100);
    EXPECT_OK(
        testing::Over(me.backend().Allreduce(me.Next(), testing::ViewOf(values), ReduceOp::kSum)));
  });
  JsonWriter writer;
  backends[0]->WriteStatistics(writer);
  const std::string json = writer.Take();
  EXPECT_TRUE(json.find("\"name\":\"inproc\",\"bytes_sent\":400") != std::string::npos) << json;
}

TEST(BuiltinBackend, a_topology_of_another_size_is_refused) {
  const auto backend = BuiltinBackend::Create(nullptr, Topology::Alike({0, 0}, kTwoProcessors));
  EXPECT_EQ(backend.status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace rabit

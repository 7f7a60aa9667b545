#include "backend/ps/ps_backend.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>

#include "backend/builtin/builtin_backend.h"
#include "backend/ps/ps_wire.h"
#include "testing/backend_conformance.h"
#include "testing/forwarding_backend.h"
#include "testing/inproc_transport.h"
#include "testing/link_hosts.h"
#include "testing/routed_backend.h"
#include "testing/sanitizer.h"
#include "testing/server_threads.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::Member;
using testing::Values;

constexpr int kStreams = 6;

RouterOptions RouterFor(int size) {
  RouterOptions options;
  options.topology = Topology::Alike(std::vector<int>(static_cast<size_t>(size), 0), {0, 1});
  return options;
}

// Allreduces through servers, all else as an engine would have it run.
class WithServers final : public testing::ForwardingBackend {
 public:
  WithServers(std::shared_ptr<testing::ServerThreads> servers, std::unique_ptr<Backend> ps,
              std::unique_ptr<Backend> builtin)
      : ForwardingBackend(std::move(builtin)), servers_(std::move(servers)), ps_(std::move(ps)) {}

  std::string_view name() const override { return ps_->name(); }
  Status AddGroup(const Group& group) override { return ps_->AddGroup(group); }
  void Abort(Status why) override {
    // Whoever learns it from the servers finds the other one aborted as well.
    inner().Abort(why);
    ps_->Abort(std::move(why));
  }
  void WriteStatistics(JsonWriter& json) const override { ps_->WriteStatistics(json); }

  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    return ps_->Allreduce(lane, in_out, op);
  }

 private:
  const std::shared_ptr<testing::ServerThreads> servers_;
  const std::unique_ptr<Backend> ps_;
};

// Links of which those of the servers are so much faster that workers sum nothing.
Places OnServers(int workers, int servers) {
  Places places = Places::Alike(workers, servers);
  for (int server = workers; server < workers + servers; ++server) {
    places.bandwidth_of[static_cast<size_t>(server)] = 1e6;
  }
  return places;
}

std::vector<std::unique_ptr<Backend>> MakeBackends(const Places& places) {
  const int size = places.workers, servers = places.servers();
  testing::InprocFabric fabric(size);
  testing::InprocFabric endpoints(size + servers);
  auto threads = std::make_shared<testing::ServerThreads>(endpoints, size, servers, kStreams);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < size; ++rank) {
    auto builtin = BuiltinBackend::Create(size == 1 ? nullptr : fabric.Connect(rank),
                                          RouterFor(size).topology);
    EXPECT_OK(builtin);
    auto ps =
        std::make_unique<PsBackend>(endpoints.Connect(rank), places, testing::NodeNames(servers));
    backends.push_back(std::make_unique<WithServers>(
        threads, std::move(ps),
        std::make_unique<testing::RoutedBackend>(std::move(builtin).value(), RouterFor(size))));
  }
  return backends;
}

std::vector<std::unique_ptr<Backend>> MakeBackends(int size, int servers) {
  return MakeBackends(OnServers(size, servers));
}

[[maybe_unused]] const int kOneServer = testing::RegisterBackendConformance(
    "PsBackendOneServer", [](int size) { return MakeBackends(size, 1); });
[[maybe_unused]] const int kNoServer = testing::RegisterBackendConformance(
    "PsBackendNoServer", [](int size) { return MakeBackends(size, 0); });
[[maybe_unused]] const int kShared = testing::RegisterBackendConformance(
    "PsBackendShared", [](int size) { return MakeBackends(Places::Alike(size, 1)); });
[[maybe_unused]] const int kThreeServers = testing::RegisterBackendConformance(
    "PsBackendThreeServers", [](int size) { return MakeBackends(size, 3); });

// Values whose sum depends on the order.
std::vector<float> Uneven(int rank, size_t count) {
  std::vector<float> values(count);
  uint64_t state = static_cast<uint64_t>(rank) + 1;
  for (float& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<int64_t>(state >> 20) % 1'000'003) / 977.0f *
            (state & 1 ? 1e-4f : 1e4f);
  }
  return values;
}

TEST(PsBackend, sums_have_the_bits_of_the_sum_in_rank_order) {
  constexpr int kSize = 5;
  constexpr size_t kCount = 300'001;
  const auto backends = MakeBackends(Places::Alike(kSize, 2));
  std::vector<std::vector<float>> sums(kSize);

  testing::RunRanks(kSize, [&](int rank) {
    auto& mine = sums[static_cast<size_t>(rank)];
    mine = Uneven(rank, kCount);
    Member me(*backends[static_cast<size_t>(rank)], testing::WorldOf(kSize, rank), 0);
    EXPECT_OK(testing::Over(me.backend().Allreduce(
        me.Next(), {mine.data(), static_cast<int64_t>(kCount), DType::kFloat32, {}},
        ReduceOp::kSum)));
  });

  std::vector<float> expected = Uneven(0, kCount);
  for (int rank = 1; rank < kSize; ++rank) {
    const std::vector<float> theirs = Uneven(rank, kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] += theirs[i];
  }
  for (const auto& sum : sums) {
    EXPECT_EQ(std::memcmp(sum.data(), expected.data(), kCount * sizeof(float)), 0);
  }
}

// 1 + 2^-9 + 2^-9 + … in bfloat16: every single addition would be rounded away.
TEST(PsBackend, sixteen_bit_sums_are_rounded_once) {
  constexpr int kSize = 5;
  constexpr uint16_t kOne = 0x3f80, kSmall = 0x3b00;  // 2^-9
  const auto backends = MakeBackends(kSize, 1);

  testing::RunRanks(kSize, [&](int rank) {
    std::vector<uint16_t> values(100, rank == 0 ? kOne : kSmall);
    Member me(*backends[static_cast<size_t>(rank)], testing::WorldOf(kSize, rank), 0);
    EXPECT_OK(testing::Over(me.backend().Allreduce(
        me.Next(), {values.data(), 100, DType::kBfloat16, {}}, ReduceOp::kSum)));
    EXPECT_EQ(values[99], 0x3f81);  // 1 + 2^-7
  });
}

TEST(PsBackend, statistics_tell_what_went_to_each_server) {
  const auto backends = MakeBackends(2, 2);
  testing::RunRanks(2, [&](int rank) {
    Member me(*backends[static_cast<size_t>(rank)], testing::WorldOf(2, rank), 0);
    Values values(50'000);
    EXPECT_OK(
        testing::Over(me.backend().Allreduce(me.Next(), testing::ViewOf(values), ReduceOp::kSum)));
  });
  JsonWriter writer;
  backends[1]->WriteStatistics(writer);
  const std::string json = writer.Take();
  EXPECT_EQ(json.substr(json.find("\"servers\"")),
            "\"servers\":[{\"number\":0,\"host\":\"node\",\"is_lost\":false,\"bytes_pushed\":"
            "100000,\"bytes_pulled\":"
            "100000},"
            "{\"number\":1,\"host\":\"node\",\"is_lost\":false,\"bytes_pushed\":100000,\"bytes_"
            "pulled\":100000}]");
}

// A job whose links are told, and what it has moved over each.
class LinkedJob {
 public:
  explicit LinkedJob(const Places& places)
      : places_(places),
        fabric_(static_cast<int>(places.host_of.size())),
        servers_(std::make_unique<testing::ServerThreads>(fabric_, places.workers, places.servers(),
                                                          1)) {
    for (int rank = 0; rank < places.workers; ++rank) {
      auto endpoints = fabric_.Connect(rank);
      endpoints_.push_back(endpoints.get());
      backends_.push_back(std::make_unique<PsBackend>(std::move(endpoints), places,
                                                      testing::NodeNames(places.servers())));
    }
  }
  ~LinkedJob() { backends_.clear(); }  // before the servers

  // Returns the bytes of all tensors of one worker.
  int64_t Run(const std::vector<size_t>& counts) {
    testing::RunRanks(places_.workers, [&](int rank) {
      Member me(*backends_[static_cast<size_t>(rank)], testing::WorldOf(places_.workers, rank), 0);
      for (const size_t count : counts) {
        std::vector<float> values(count, static_cast<float>(rank));
        EXPECT_OK(testing::Over(me.backend().Allreduce(
            me.Next(), {values.data(), static_cast<int64_t>(count), DType::kFloat32, {}},
            ReduceOp::kSum)));
        EXPECT_EQ(values.back(), static_cast<float>(places_.workers * (places_.workers - 1) / 2));
      }
    });
    return 4 * static_cast<int64_t>(std::accumulate(counts.begin(), counts.end(), size_t{0}));
  }

  uint64_t MessagesOf(int worker) const {
    return endpoints_[static_cast<size_t>(worker)]->counters().messages_sent;
  }
  // Each way, of the worker or the server of that number.
  std::pair<int64_t, int64_t> BytesOver(int process) const {
    if (process >= places_.workers) {
      const auto summed =
          static_cast<int64_t>((*servers_)[process - places_.workers].bytes_summed());
      return {summed, summed};
    }
    const TransportCounters counters = endpoints_[static_cast<size_t>(process)]->counters();
    return {static_cast<int64_t>(counters.bytes_sent),
            static_cast<int64_t>(counters.bytes_received)};
  }

 private:
  const Places places_;
  testing::InprocFabric fabric_;
  std::unique_ptr<testing::ServerThreads> servers_;
  std::vector<const Transport*> endpoints_;
  std::vector<std::unique_ptr<PsBackend>> backends_;
};

TEST(PsBackend, every_link_is_done_when_the_optimum_says) {
  uint64_t state = 11;
  std::vector<size_t> counts = {1'000'000};
  for (int i = 0; i < 60; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    counts.push_back(1000 + (state >> 33) % 60'000);
  }
  for (const int workers : {2, 4}) {
    for (const int servers : testing::kIsSanitized ? std::vector{0, 2} : std::vector{0, 1, 2, 4}) {
      for (const bool is_equal : {true, false}) {
        const testing::LinkHosts hosts(workers, servers, is_equal);
        LinkedJob job(hosts.places);

        const auto bytes = static_cast<double>(job.Run(counts));

        for (int i = 0; i < workers + servers; ++i) {
          const double wanted = hosts.Traffic(i);
          const auto [out, in] = job.BytesOver(i);
          for (const int64_t each : {out, in}) {
            EXPECT_LE(std::abs(static_cast<double>(each) / bytes - wanted), 0.05 * wanted)
                << workers << " workers, " << servers << " servers, link " << i;
          }
        }
      }
    }
  }
}

// 1 MiB for one server: a chunk may stay 2 ms on a link whose rate is known.
TEST(PsBackend, chunks_are_smaller_on_slow_links) {
  const auto chunks_at = [](double bytes_per_second, bool knows_rates) {
    Places places = OnServers(2, 1);
    places.bandwidth_of = {bytes_per_second, bytes_per_second, 1e6 * bytes_per_second};
    places.knows_rates = knows_rates;
    LinkedJob job(places);
    (void)job.Run({1 << 18});
    return job.MessagesOf(1);
  };
  EXPECT_EQ(chunks_at(125e6, true), uint64_t{11});  // of 96 KiB
  EXPECT_EQ(chunks_at(25e6, true), uint64_t{21});   // of 50,000 bytes
  EXPECT_EQ(chunks_at(1e6, true), uint64_t{32});    // of 32 KiB
  EXPECT_EQ(chunks_at(25e6, false), uint64_t{11});
}

TEST(PsBackend, a_lost_server_is_named_with_its_host) {
  constexpr int kSize = 2;
  testing::InprocFabric fabric(kSize + 2);
  testing::ServerThreads first(fabric, kSize, 1, 1);
  fabric.Connect(kSize + 1).reset();  // server 1 has been there
  std::vector<std::unique_ptr<PsBackend>> backends;
  for (int rank = 0; rank < kSize; ++rank) {
    backends.push_back(std::make_unique<PsBackend>(fabric.Connect(rank), OnServers(kSize, 2),
                                                   testing::NodeNames(2)));
  }

  testing::RunRanks(kSize, [&](int rank) {
    Member me(*backends[static_cast<size_t>(rank)], testing::WorldOf(kSize, rank), 0);
    Values values(50'000);
    const Status status =
        testing::Over(me.backend().Allreduce(me.Next(), testing::ViewOf(values), ReduceOp::kSum));
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_EQ(status.culprit(), kSize + 1);
    EXPECT_TRUE(status.message().starts_with("server 1 on host node is lost")) << status;
  });
}

TEST(PsBackend, a_server_ends_when_a_worker_leaves) {
  testing::InprocFabric fabric(3);
  auto workers = std::make_unique<std::vector<std::unique_ptr<Transport>>>();
  for (int rank = 0; rank < 2; ++rank) workers->push_back(fabric.Connect(rank));
  SummationServer server(fabric.Connect(2), 2, kStreams);
  std::thread leaver([&] { workers.reset(); });
  const Status status = server.Serve();
  leaver.join();
  EXPECT_EQ(status.code(), Code::kPeerLost);
}

TEST(PsBackend, a_group_that_cannot_be_ends_the_server) {
  testing::InprocFabric fabric(3);
  const auto liar = fabric.Connect(0);
  const auto other = fabric.Connect(1);
  SummationServer server(fabric.Connect(2), 2, kStreams);
  std::thread tells([&] {
    const GroupHeaderBytes header = Encode(GroupHeader{1, 2});
    const std::vector<int32_t> ranks = {1, 0};
    Operation first = liar->Send(2, GroupHeaderTag(), header);
    Operation second = liar->Send(2, GroupHeaderTag(), std::as_bytes(std::span(ranks)));
    EXPECT_OK(first.Wait(After(std::chrono::seconds(20))));
    EXPECT_OK(second.Wait(After(std::chrono::seconds(20))));
  });
  const Status status = server.Serve();
  tells.join();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_TRUE(status.message().find("group 1 with rank 0") != std::string::npos) << status;
}

int ThreadsOfProcess() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int threads = 0;
    if (word == "Threads:" && status >> threads) return threads;
  }
  return 0;
}

Group PairOf(int id, int rank) { return {id, {0, 1}, rank}; }

// A server has a thread for each stream of a group.
TEST(PsBackend, groups_that_are_removed_leave_no_threads_on_the_servers) {
  constexpr int kStreamsHere = 3, kGroups = 100;
  testing::InprocFabric fabric(3);
  testing::ServerThreads servers(fabric, 2, 1, kStreamsHere);
  std::vector<std::unique_ptr<PsBackend>> backends;
  for (int rank = 0; rank < 2; ++rank) {
    backends.push_back(std::make_unique<PsBackend>(fabric.Connect(rank), OnServers(2, 1),
                                                   testing::NodeNames(1), PsStreams{kStreamsHere}));
  }
  const int before = ThreadsOfProcess();
  testing::RunRanks(2, [&](int rank) {
    PsBackend& backend = *backends[static_cast<size_t>(rank)];
    for (int id = 1; id <= kGroups; ++id) {
      const Group group = PairOf(id, rank);
      ASSERT_OK(backend.AddGroup(group));
      Member me(backend, group, 0);
      Values values(10'000);
      ASSERT_OK(
          testing::Over(backend.Allreduce(me.Next(), testing::ViewOf(values), ReduceOp::kSum)));
      backend.RemoveGroup(group);
    }
  });
  // Each group that comes has those joined that have ended; the last ones may be ending.
  EXPECT_LE(ThreadsOfProcess() - before, kGroups * kStreamsHere / 4);
  backends.clear();
}

// As with "ulimit -u": here the memory for the stacks is limited.
TEST(PsBackend, a_server_that_gets_no_more_threads_ends_with_the_reason) {
  if (testing::kIsSanitized) return;  // whose memory has no such limit
  testing::InprocFabric fabric(3);
  testing::ServerThreads servers(fabric, 2, 1, 4);
  PsBackend backend(fabric.Connect(0), OnServers(2, 1), testing::NodeNames(1), PsStreams{4});
  PsBackend other(fabric.Connect(1), OnServers(2, 1), testing::NodeNames(1), PsStreams{4});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  std::ifstream sizes("/proc/self/statm");
  rlim_t pages = 0;
  ASSERT_TRUE(static_cast<bool>(sizes >> pages));
  rlimit limited = before;
  limited.rlim_cur = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limited), 0);

  Status told;
  for (int id = 1; id <= 1000 && told.ok(); ++id) told = backend.AddGroup(PairOf(id, 0));
  const Status end = servers.EndOf(0);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);

  EXPECT_EQ(end.code(), Code::kResourceExhausted) << end;
  EXPECT_TRUE(testing::Has(end.message(), "one for each stream of each group")) << end;
}

}  // namespace
}  // namespace rabit

#include "collective/link_probe.h"

#include <vector>

#include "collective/allreduce.h"
#include "testing/inproc_transport.h"
#include "testing/run_ranks.h"
#include "testing/test.h"
#include "transport/group_transport.h"

namespace rabit {
namespace {

using std::chrono_literals::operator""ms;

constexpr auto kTimeout = std::chrono::seconds(60);

// What every rank of a job finds; rank r has the budget budgets[r].
std::vector<LinkModel> MeasureOn(const std::vector<std::chrono::milliseconds>& budgets) {
  const int size = static_cast<int>(budgets.size());
  testing::InprocFabric fabric(size);
  std::vector<LinkModel> found(budgets.size());
  testing::RunRanks(size, [&](int rank) {
    const auto transport = fabric.Connect(rank);
    Scratch scratch;
    const CollectiveCall call{*transport, MakeTag(0, 1), After(kTimeout), scratch};
    const auto link = MeasureLink(call, call, {}, {budgets[static_cast<size_t>(rank)], 1});
    EXPECT_OK(link);
    if (link.ok()) found[static_cast<size_t>(rank)] = *link;
  });
  return found;
}

bool AreEqual(const LinkModel& a, const LinkModel& b) {
  return a.latency_us == b.latency_us && a.fan_us == b.fan_us && a.message_us == b.message_us &&
         a.bytes_per_us == b.bytes_per_us && a.reduce_bytes_per_us == b.reduce_bytes_per_us &&
         a.is_crowded == b.is_crowded && a.is_measured == b.is_measured;
}

TEST(MeasureLink, all_ranks_find_the_same) {
  for (int size : {2, 3, 4, 5}) {
    const std::vector<LinkModel> found =
        MeasureOn(std::vector<std::chrono::milliseconds>(static_cast<size_t>(size), 5ms));
    for (const LinkModel& link : found) EXPECT_TRUE(AreEqual(link, found[0])) << size;
    EXPECT_TRUE(found[0].is_measured);
    EXPECT_TRUE(found[0].latency_us > 0 && found[0].message_us > 0) << size;
    EXPECT_TRUE(found[0].bytes_per_us > 0 && found[0].reduce_bytes_per_us > 0) << size;
  }
}

TEST(MeasureLink, the_budget_of_rank_0_counts) {
  for (const LinkModel& link : MeasureOn({0ms, 5ms, 5ms})) EXPECT_TRUE(!link.is_measured);
  for (const LinkModel& link : MeasureOn({5ms, 0ms, 0ms})) EXPECT_TRUE(link.is_measured);
}

TEST(MeasureLink, without_a_budget_the_start_comes_back) {
  for (const LinkModel& link : MeasureOn({0ms, 0ms})) EXPECT_TRUE(AreEqual(link, LinkModel{}));
}

TEST(MeasureLink, a_lone_rank_measures_nothing) {
  testing::InprocFabric fabric(1);
  const auto transport = fabric.Connect(0);
  Scratch scratch;
  const CollectiveCall call{*transport, MakeTag(0, 1), After(kTimeout), scratch};
  const auto link = MeasureLink(call, call, {}, {5ms, 1});
  EXPECT_OK(link);
  EXPECT_TRUE(AreEqual(*link, LinkModel{}));
}

TEST(MeasureLink, the_groups_of_a_world_measure_at_once_and_rank_0s_counts) {
  testing::InprocFabric fabric(5);
  std::vector<LinkModel> found(5);
  testing::RunRanks(5, [&](int rank) {
    const auto transport = fabric.Connect(rank);
    Group group;  // {0, 1}, {2, 3} and {4}
    group.ranks =
        rank == 4 ? std::vector<int>{4} : std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1};
    group.my_index = group.IndexOf(rank);
    GroupTransport members(*transport, group);
    Scratch scratch;
    const Deadline deadline = After(kTimeout);
    const auto link = MeasureLink({*transport, MakeTag(0, 1), deadline, scratch},
                                  {members, MakeTag(0, 1), deadline, scratch}, {}, {5ms, 1});
    EXPECT_OK(link);
    if (link.ok()) found[static_cast<size_t>(rank)] = *link;
  });
  for (const LinkModel& link : found) EXPECT_TRUE(AreEqual(link, found[0]));
  EXPECT_TRUE(found[0].is_measured);
}

TEST(MeasureLink, a_rank_that_is_lost_ends_it) {
  testing::InprocFabric fabric(2);
  const auto transport = fabric.Connect(0);
  Scratch scratch;
  const CollectiveCall call{*transport, MakeTag(0, 1), After(20ms), scratch};
  const auto link = MeasureLink(call, call, {}, {5ms, 1});
  EXPECT_EQ(link.status().code(), Code::kTimedOut);
}

// What was measured on one host with two cores, and what was fastest there.
struct Known {
  const char* where;
  int size;
  LinkModel link;
  int64_t bytes;
  std::string_view fastest;
};

TEST(LinkModel, the_choice_is_what_was_fastest) {
  const LinkModel two_shm{0.46, 2, 0.28, 31000, 41000, false, true};
  const LinkModel four_shm{16.5, 5.7, 5.0, 25000, 19000, true, true};
  const LinkModel four_shm_later{3.1, 0.83, 3.1, 16600, 18500, true, true};
  const LinkModel two_tcp{36, 2, 6.3, 4400, 36000, false, true};
  const LinkModel two_tcp_later{31, 2, 2.2, 4600, 35000, false, true};
  const LinkModel four_tcp{33, 29, 8.7, 1640, 19500, true, true};
  const Known known[] = {
      {"2, shm", 2, two_shm, 4 << 10, "recursive_doubling"},
      {"2, shm", 2, two_shm, 16 << 10, "recursive_doubling"},
      {"2, shm", 2, two_shm, 256 << 10, "halving_doubling"},
      {"2, shm", 2, two_shm, 4 << 20, "halving_doubling"},
      {"4, shm", 4, four_shm, 64 << 10, "recursive_doubling"},
      {"4, shm", 4, four_shm, 1 << 20, "halving_doubling"},
      {"4, shm", 4, four_shm, 64 << 20, "halving_doubling"},
      {"4, shm", 4, four_shm_later, 4 << 10, "gather_all"},
      {"4, shm", 4, four_shm_later, 16 << 10, "recursive_doubling"},
      {"2, tcp", 2, two_tcp, 256 << 10, "recursive_doubling"},
      {"2, tcp", 2, two_tcp, 4 << 20, "direct"},
      {"2, tcp", 2, two_tcp_later, 256 << 10, "recursive_doubling"},
      {"2, tcp", 2, two_tcp_later, 1 << 20, "halving_doubling"},
      {"2, tcp", 2, two_tcp_later, 16 << 20, "direct"},
      {"4, tcp", 4, four_tcp, 1 << 10, "recursive_doubling"},
      {"4, tcp", 4, four_tcp, 64 << 10, "recursive_doubling"},
      {"4, tcp", 4, four_tcp, 256 << 10, "halving_doubling"},
      {"4, tcp", 4, four_tcp, 16 << 20, "halving_doubling"},
  };
  for (const Known& each : known) {
    const AllreduceAlgorithm& chosen =
        ChooseAllreduceAlgorithm(each.link, each.size, each.bytes, false);
    EXPECT_EQ(chosen.name, each.fastest) << each.where << ", " << each.bytes << " bytes";
  }
}

TEST(LinkModel, no_cost_falls_when_there_are_more_bytes) {
  const LinkModel link;
  for (const AllreduceAlgorithm& algorithm : AllreduceAlgorithms()) {
    for (int size : {2, 3, 4, 7, 64}) {
      double before = 0;
      for (int64_t bytes = 1; bytes <= int64_t{1} << 32; bytes *= 2) {
        const double cost = algorithm.cost_us(link, size, bytes);
        EXPECT_TRUE(cost >= before) << algorithm.name << ", " << size << ", " << bytes;
        before = cost;
      }
    }
  }
}

}  // namespace
}  // namespace rabit

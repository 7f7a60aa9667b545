#include "backend/ps/link_shares.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

bool IsNear(double a, double b) { return std::abs(a - b) < 1e-9; }

std::vector<LinkHost> Hosts(std::vector<double> workers, std::vector<double> servers) {
  std::vector<LinkHost> hosts;
  for (const double bandwidth : workers) hosts.push_back({1, bandwidth});
  for (const double bandwidth : servers) hosts.push_back({0, bandwidth});
  return hosts;
}

// When the last link is done, if the hosts sum these parts.
double TimeOf(const std::vector<LinkHost>& hosts, const std::vector<double>& shares) {
  int workers = 0;
  for (const LinkHost& host : hosts) workers += host.workers;
  double time = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const double carried = hosts[i].workers + (workers - 2 * hosts[i].workers) * shares[i];
    time = std::max(time, carried / hosts[i].bandwidth);
  }
  return time;
}

// Shares that sum to 1 near `shares`, at random.
std::vector<double> Another(std::vector<double> shares, uint64_t& state) {
  const auto next = [&state] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state >> 40) / static_cast<double>(1 << 24);
  };
  const double reach = next() * next();
  for (double& share : shares) share = std::max(0.0, share + reach * (next() - 0.5));
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares)
    share = sum > 0 ? share / sum : 1.0 / static_cast<double>(shares.size());
  return shares;
}

TEST(LinkShares, equal_links_are_split_as_the_formula_says) {
  for (const int n : {2, 3, 4, 5, 8, 16, 64}) {
    for (int k = 0; k <= n; ++k) {
      const auto hosts = Hosts(std::vector<double>(static_cast<size_t>(n), 1.0),
                               std::vector<double>(static_cast<size_t>(k), 1.0));
      const std::vector<double> shares = HostShares(hosts);
      const double all = n * n + k * n - 2 * k;
      for (int i = 0; i < n + k; ++i) {
        const double expected = (i < n ? n - k : 2 * (n - 1)) / all;
        EXPECT_TRUE(IsNear(shares[static_cast<size_t>(i)], expected)) << n << " " << k;
      }
      EXPECT_TRUE(IsNear(TimeOf(hosts, shares), 2 * n * (n - 1) / all)) << n << " " << k;
    }
  }
}

TEST(LinkShares, more_servers_than_workers_sum_everything) {
  const std::vector<double> shares = HostShares(Hosts({1, 1}, {1, 1, 1, 1}));

  const std::vector<double> expected = {0, 0, 0.25, 0.25, 0.25, 0.25};
  for (size_t i = 0; i < shares.size(); ++i) EXPECT_TRUE(IsNear(shares[i], expected[i]));
}

TEST(LinkShares, a_slow_server_gets_less_and_a_fast_worker_more) {
  // T = n (2 n - 2) / (n * 5 + (n - 2) * 1) with n = 4 workers of bandwidth 5 in all.
  const auto hosts = Hosts({1, 1, 1, 2}, {0.5, 0.5});
  const double time = 24.0 / (4 * 5 + 2 * 1);

  const std::vector<double> shares = HostShares(hosts);

  EXPECT_TRUE(IsNear(TimeOf(hosts, shares), time));
  EXPECT_TRUE(IsNear(shares[3], (time * 2 - 1) / 2));
  EXPECT_TRUE(IsNear(shares[4], time * 0.5 / 4));
}

TEST(LinkShares, no_other_split_has_all_links_done_earlier) {
  uint64_t state = 5;
  const std::vector<std::vector<LinkHost>> cases = {
      Hosts({1, 1, 1, 1}, {}),
      Hosts({1, 2, 3, 4}, {}),
      Hosts({1, 1, 1, 1}, {0.25, 4}),
      Hosts({3, 3}, {1, 1, 0.5}),
      Hosts({3, 1}, {}),
      Hosts({1, 10, 10, 10}, {10}),
      {{2, 1}, {2, 1}, {0, 1}},
      {{3, 1}, {1, 1}},
      {{3, 1}, {1, 0.2}, {0, 2}},
      {{6, 2}, {1, 1}, {1, 3}, {0, 1}},
      {{4, 1}},
      {{4, 1}, {0, 1}},
  };
  for (const auto& hosts : cases) {
    const std::vector<double> shares = HostShares(hosts);
    const double time = TimeOf(hosts, shares);
    EXPECT_TRUE(IsNear(std::accumulate(shares.begin(), shares.end(), 0.0), 1));
    for (int i = 0; i < 2000; ++i) {
      EXPECT_LE(time, TimeOf(hosts, Another(shares, state)) + 1e-9);
    }
  }
}

TEST(LinkShares, servers_sum_the_part_of_their_host_and_members_that_of_theirs) {
  const Places places{4, {0, 0, 1, 1, 0, 2}, {1, 1, 1}};
  const std::vector<int> everybody = {0, 1, 2, 3};
  const std::vector<int> across = {1, 2};

  const std::vector<double> shares = SharesOf(places, everybody);

  EXPECT_EQ(shares.size(), size_t{6});
  EXPECT_TRUE(IsNear(shares[0], 0) && IsNear(shares[1], 0));
  EXPECT_GT(shares[2], 0.0);
  EXPECT_TRUE(IsNear(shares[2], shares[3]));
  EXPECT_TRUE(IsNear(shares[4], 2 * shares[2]));
  EXPECT_TRUE(IsNear(shares[5], 0.5));  // Its link carries four tensors of what it sums.

  const std::vector<double> of_two = SharesOf(places, across);
  EXPECT_TRUE(IsNear(of_two[0], 0) && IsNear(of_two[1], 0.25));
  EXPECT_TRUE(IsNear(of_two[2], 0.25) && IsNear(of_two[3], 0.5));
}

TEST(LinkShares, members_of_one_host_use_no_link) {
  const Places places{4, {0, 0, 0, 0, 1}, {1, 1}};
  const std::vector<int> everybody = {0, 1, 2, 3};

  const std::vector<double> shares = SharesOf(places, everybody);

  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(IsNear(shares[i], 0.25));
  EXPECT_TRUE(IsNear(shares[4], 0));
}

// A server of four with a copy elsewhere: 5 x, beside 1 + 2 (1 - x) / 4 of a rank.
TEST(LinkShares, copies_of_sums_count_on_the_links_of_servers) {
  const std::vector<LinkHost> hosts = {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 1, 1}, {0, 1, 1}};
  const std::vector<double> shares = HostShares(hosts);
  EXPECT_LE(std::abs(5 * shares[4] - (1 + 2 * shares[0])), 1e-6);

  Places places = Places::Alike(4, 2);
  places.replicas = 2;
  const std::vector<int> members = {0, 1, 2, 3};
  const std::vector<double> same = SharesOf(places, members);
  for (size_t i = 0; i < shares.size(); ++i) EXPECT_LE(std::abs(same[i] - shares[i]), 1e-9);
}

}  // namespace
}  // namespace rabit

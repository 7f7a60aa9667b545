// Link shares: which part of a tensor each process sums, so that no link has more to do than need be.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace rabit {

// A machine, whose processes share one link to all others.
struct LinkHost {
  int workers = 0;
  double bandwidth = 1;  // each way, in any unit that is the same for all
  int copies = 0;        // of what is summed here, which go to other hosts, as many coming from them
};

// The parts of the hosts, which add up to 1.  With n workers, m of them on a host that sums the part
// x, its link carries m + (n - 2 m) x tensors each way: what its workers push beyond it, and what the
// others get from it; copies of sums take x each way.  No other parts have all links done earlier.  Where some are as good, hosts
// without workers sum as much as their links allow: their processors have nothing else to do.
// For equal links of n hosts with one worker and k without, this is the optimum of Jiang et al., "A
// Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU Clusters",
// 2020.
std::vector<double> HostShares(std::span<const LinkHost> hosts);

// Where the processes of a job are: workers, then servers.  Equal on all of them.
struct Places {
  int workers = 0;
  std::vector<int> host_of;         // process -> host
  std::vector<double> bandwidth_of;  // host -> what its link carries
  int replicas = 1;                  // servers that have each sum of a server
  bool knows_rates = false;          // `bandwidth_of` is in bytes per second, and in no other unit

  int servers() const { return static_cast<int>(host_of.size()) - workers; }
  // Every process on a host of its own, with links that are alike.
  static Places Alike(int workers, int servers);
};

// The parts of `members`, which are workers, and behind them those of all servers.  The servers of a
// host sum the part of the host; where there is none, its members do.
std::vector<double> SharesOf(const Places& places, std::span<const int> members);

}  // namespace rabit

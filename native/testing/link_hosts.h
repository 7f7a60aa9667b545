// LinkHosts: hosts whose links carry alike or unlike much, and what the optimum sends over each.
#pragma once

#include <vector>

#include "backend/ps/link_shares.h"

namespace rabit::testing {

// Every worker and every server has a host of its own, in this order.
struct LinkHosts {
  LinkHosts(int workers, int servers, bool is_equal) : places(Places::Alike(workers, servers)) {
    for (int i = 0; i < workers + servers; ++i) {
      double& bandwidth = places.bandwidth_of[static_cast<size_t>(i)];
      if (!is_equal) bandwidth = i < workers ? 1 + i : 0.5 * (1 + i - workers);
      hosts.push_back({i < workers ? 1 : 0, bandwidth});
    }
    shares = HostShares(hosts);
  }

  // Each way over the link of a host, in parts of the bytes of all tensors.
  double Traffic(int host) const {
    const int own = hosts[static_cast<size_t>(host)].workers;
    return own + (places.workers - 2 * own) * shares[static_cast<size_t>(host)];
  }

  Places places;
  std::vector<LinkHost> hosts;
  std::vector<double> shares;
};

}  // namespace rabit::testing

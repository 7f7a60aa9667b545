// TcpJob: TCP transports of several ranks in one process, for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/listener.h"
#include "testing/memory_store.h"
#include "testing/run_ranks.h"
#include "testing/test.h"
#include "testing/transport_conformance.h"
#include "transport/connect.h"
#include "transport/tcp/tcp_transport.h"

namespace rabit::testing {

// What the transports borrow.
struct TcpJob {
  explicit TcpJob(int size, const std::string& address = "127.0.0.1:0") {
    secret.key.fill(7);
    topology.host_of.assign(static_cast<size_t>(size), 0);
    for (int rank = 0; rank < size; ++rank) {
      Result<std::unique_ptr<Listener>> listener = Listener::Open(address, secret, 1, rank);
      if (!listener.ok()) {
        ADD_FAILURE() << listener.status();
        return;
      }
      EXPECT_OK(store.Set("1/address/" + std::to_string(rank), (*listener)->address()));
      listeners.push_back(std::move(*listener));
    }
  }

  ConnectContext Context(int rank, std::chrono::nanoseconds time = std::chrono::seconds(30)) {
    return {.rank = rank,
            .size = static_cast<int>(topology.host_of.size()),
            .epoch = 1,
            .store = store,
            .listener = *listeners[static_cast<size_t>(rank)],
            .secret = secret,
            .topology = topology,
            .streams = 4,
            .deadline = After(time)};
  }

  testing::MemoryStore store;
  Secret secret;
  Topology topology;
  std::vector<std::unique_ptr<Listener>> listeners;
};

inline TransportSet MakeTcp(int size, const std::function<TcpOptions(int rank)>& options_of,
                            const std::string& address = "127.0.0.1:0") {
  auto job = std::make_shared<TcpJob>(size, address);
  TransportSet set;
  set.support = job;
  if (static_cast<int>(job->listeners.size()) != size) return set;
  set.ranks.resize(static_cast<size_t>(size));
  RunRanks(size, [&](int rank) {
    Result<std::unique_ptr<Transport>> transport =
        ConnectTcpTransport(job->Context(rank), options_of(rank));
    EXPECT_OK(transport);
    if (transport.ok()) set.ranks[static_cast<size_t>(rank)] = std::move(*transport);
  });
  for (const auto& rank : set.ranks) {
    if (rank == nullptr) set.ranks.clear();
    if (set.ranks.empty()) break;
  }
  return set;
}

}  // namespace rabit::testing

// What the tests and the benchmark of the shared-memory transport have in common.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "rendezvous/listener.h"
#include "transport/connect.h"
#include "transport/shm/shm_transport.h"

namespace rabit::testing {

// The transport finds its peers through the store alone.
class NoListener final : public Listener {
 public:
  std::string address() const override { return "unused:0"; }
  void SetEpoch(uint64_t) override {}
  void SetHandler(std::string_view, std::function<void(AuthenticatedPeer)>) override {}
  void RemoveHandler(std::string_view) override {}
};

// Connects `rank` with ranks 0 … size-1 of this host.
inline Result<std::unique_ptr<Transport>> ConnectOneHost(Store& store, int rank, int size,
                                                         const ShmOptions& options,
                                                         int streams = 4) {
  NoListener listener;
  const Secret secret{};
  const auto topology =
      Topology::Alike(std::vector<int>(static_cast<size_t>(size), 0), FindProcessors());
  const ConnectContext context{.rank = rank,
                               .size = size,
                               .epoch = 1,
                               .store = store,
                               .listener = listener,
                               .secret = secret,
                               .topology = topology,
                               .streams = streams,
                               .deadline = After(std::chrono::seconds(30))};
  return ConnectShmTransport(context, options);
}

}  // namespace rabit::testing

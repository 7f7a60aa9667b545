#include "transport/routed_transport.h"

#include "testing/tcp_job.h"
#include "transport/inproc/inproc_transport.h"

namespace rabit {
namespace {

// Neighbours (0 and 1, 2 and 3) share a host; everyone else is reached over TCP.
testing::TransportSet MakeRouted(int size) {
  InprocFabric fabric(size);
  testing::TransportSet set = testing::MakeTcp(size, [](int) { return TcpOptions{}; });
  for (int rank = 0; rank < static_cast<int>(set.ranks.size()); ++rank) {
    std::vector<std::unique_ptr<Transport>> parts;
    parts.push_back(fabric.Connect(rank));
    parts.push_back(std::move(set.ranks[static_cast<size_t>(rank)]));
    std::vector<int> route;
    for (int peer = 0; peer < size; ++peer) route.push_back(peer / 2 == rank / 2 ? 0 : 1);
    set.ranks[static_cast<size_t>(rank)] =
        std::make_unique<RoutedTransport>(std::move(parts), std::move(route));
  }
  return set;
}

[[maybe_unused]] const int kRegistered =
    testing::RegisterTransportConformance({.suite = "RoutedTransport", .make = MakeRouted});

TEST(RoutedTransport, every_peer_is_named_by_its_own_transport) {
  testing::TransportSet set = MakeRouted(3);
  ASSERT_EQ(set.ranks.size(), size_t{3});
  EXPECT_EQ(set.ranks[0]->name_for(1), "inproc");
  EXPECT_EQ(set.ranks[0]->name_for(2), "tcp");
  EXPECT_EQ(set.ranks[2]->name_for(1), "tcp");
}

}  // namespace
}  // namespace rabit

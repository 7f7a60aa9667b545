#include "transport/routed_transport.h"

#include "testing/inproc_transport.h"
#include "testing/tcp_job.h"
#include "testing/transport_wrapper.h"
#include "transport/shared_transport.h"

namespace rabit {
namespace {

// Neighbours (0 and 1, 2 and 3) share a host; everyone else is reached over TCP.
testing::TransportSet MakeRouted(int size) {
  testing::InprocFabric fabric(size);
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

[[maybe_unused]] const int kRoutedSuite =
    testing::RegisterTransportConformance({.suite = "RoutedTransport", .make = MakeRouted});

TEST(RoutedTransport, every_peer_is_named_by_its_own_transport) {
  testing::TransportSet set = MakeRouted(3);
  ASSERT_EQ(set.ranks.size(), size_t{3});
  EXPECT_EQ(set.ranks[0]->name_for(1), "inproc");
  EXPECT_EQ(set.ranks[0]->name_for(2), "tcp");
  EXPECT_EQ(set.ranks[2]->name_for(1), "tcp");
}

class WithLongMessages final : public TransportWrapper {
 public:
  using TransportWrapper::TransportWrapper;
  ChunkLimits chunk_limits() const override { return {512 << 10, 1 << 20}; }
  int64_t cached_message_bytes(int) const override { return 4096; }
};

TEST(RoutedTransport, messages_are_as_long_as_a_part_wants) {
  testing::InprocFabric fabric(2), other(2);
  std::vector<std::unique_ptr<Transport>> parts;
  parts.push_back(fabric.Connect(0));
  parts.push_back(std::make_unique<WithLongMessages>(other.Connect(0)));
  const RoutedTransport routed(std::move(parts), {0, 1});

  EXPECT_EQ(routed.chunk_limits().bytes_min, 512 << 10);
  EXPECT_EQ(routed.chunk_limits().bytes_max, 1 << 20);
  EXPECT_EQ(routed.cached_message_bytes(1), 4096);
  EXPECT_EQ(routed.cached_message_bytes(0), 0);
}

testing::TransportSet MakeShared(int size) {
  testing::InprocFabric fabric(size);
  testing::TransportSet set;
  for (int rank = 0; rank < size; ++rank) {
    set.ranks.push_back(std::make_unique<SharedTransport>(fabric.Connect(rank)));
  }
  return set;
}

[[maybe_unused]] const int kSharedRegistered =
    testing::RegisterTransportConformance({.suite = "SharedTransport", .make = MakeShared});

TEST(SharedTransport, an_abort_through_one_owner_reaches_the_others) {
  testing::InprocFabric fabric(2);
  const std::shared_ptr<Transport> both = fabric.Connect(0);
  SharedTransport one(both), other(both);

  one.Abort(PeerLost(1, "rank 1 is gone"));

  std::byte buffer[4];
  const Status status = other.Recv(1, 7, buffer).Wait(After(std::chrono::seconds(10)));
  EXPECT_TRUE(status.code() == Code::kPeerLost);
}

}  // namespace
}  // namespace rabit

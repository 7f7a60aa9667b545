#include "testing/inproc_transport.h"

#include <array>

#include "testing/test.h"
#include "testing/transport_conformance.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;

testing::TransportSet MakeInproc(int size) {
  testing::InprocFabric fabric(size);
  testing::TransportSet set;
  for (int rank = 0; rank < size; ++rank) set.ranks.push_back(fabric.Connect(rank));
  return set;
}

[[maybe_unused]] const int kRegistered =
    testing::RegisterTransportConformance({.suite = "InprocTransport", .make = MakeInproc});

TEST(InprocTransport, a_rank_that_leaves_is_named_to_its_peers) {
  testing::TransportSet set = MakeInproc(2);
  std::array<std::byte, 8> buffer{};
  Operation receive = set.ranks[0]->Recv(1, MakeTag(0, 1), buffer);

  set.ranks[1].reset();

  const Status status = receive.Wait(After(10s));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.culprit(), 1);
  EXPECT_EQ(set.ranks[0]->Send(1, MakeTag(0, 2), buffer).Wait(After(10s)).culprit(), 1);
}

}  // namespace
}  // namespace rabit

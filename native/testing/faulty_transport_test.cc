#include "testing/faulty_transport.h"

#include <array>

#include "testing/inproc_transport.h"
#include "testing/test.h"
#include "testing/transport_conformance.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;

testing::TransportSet MakeFaulty(int size, const FaultPlan& plan) {
  testing::InprocFabric fabric(size);
  testing::TransportSet set;
  for (int rank = 0; rank < size; ++rank) {
    set.ranks.push_back(std::make_unique<FaultyTransport>(fabric.Connect(rank), plan));
  }
  return set;
}

[[maybe_unused]] const int kWithoutFaults = testing::RegisterTransportConformance(
    {.suite = "FaultyTransport", .make = [](int size) { return MakeFaulty(size, {}); }});

TEST(FaultyTransport, a_dropped_message_never_arrives_and_the_next_does) {
  testing::TransportSet set = MakeFaulty(2, {.drop_message = 0});
  std::array<std::byte, 4> first{std::byte{1}}, second{std::byte{2}}, received{};
  Operation receive = set.ranks[1]->Recv(0, 1, received);
  EXPECT_OK(set.ranks[0]->Send(1, 1, first).Wait(After(10s)));
  EXPECT_EQ(receive.Wait(After(2ms)).code(), Code::kTimedOut);
  EXPECT_OK(set.ranks[0]->Send(1, 1, second).Wait(After(10s)));
  EXPECT_OK(receive.Wait(After(10s)));
  EXPECT_EQ(std::to_integer<int>(received[0]), 2);
}

TEST(FaultyTransport, everything_fails_from_the_chosen_message_on) {
  testing::TransportSet set =
      MakeFaulty(2, {.break_at_message = 1, .failure = PeerLost(1, "the cable was pulled")});
  std::array<std::byte, 4> buffer{}, other{};
  Operation receive = set.ranks[1]->Recv(0, 1, other);
  EXPECT_OK(set.ranks[0]->Send(1, 1, buffer).Wait(After(10s)));
  EXPECT_OK(receive.Wait(After(10s)));
  Operation waiting = set.ranks[0]->Recv(1, 1, other);
  EXPECT_EQ(set.ranks[0]->Send(1, 1, buffer).Wait(After(10s)).message(), "the cable was pulled");
  EXPECT_EQ(waiting.Wait(After(10s)).culprit(), 1);
}

}  // namespace
}  // namespace rabit

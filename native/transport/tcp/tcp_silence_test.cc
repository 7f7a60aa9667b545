// Heartbeats of data connections.
#include <array>
#include <atomic>
#include <chrono>
#include <memory>

#include "testing/bad_wire.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"
#include "testing/tcp_job.h"
#include "testing/test.h"
#include "transport/tcp/tcp_options.h"
#include "transport/tcp/tcp_transport.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;

TcpOptions Beating(std::chrono::milliseconds timeout) {
  TcpOptions options;
  options.heartbeat_timeout = timeout;
  return options;
}

TEST(TcpSilence, a_peer_that_falls_silent_is_named_though_nothing_is_sent_to_it) {
  testing::TcpJob job(2);
  std::atomic<bool> is_silent{false};
  testing::BadWire wire(job.listeners[0]->address(), [&](const testing::BadWire::Piece&) {
    return is_silent.load() ? testing::BadWire::Fate::kSwallow : testing::BadWire::Fate::kPass;
  });
  ASSERT_OK(job.store.Set("1/address/0", wire.address()));
  std::array<std::unique_ptr<Transport>, 2> ranks;
  testing::RunRanks(2, [&](int rank) {
    auto transport = ConnectTcpTransport(job.Context(rank), Beating(300ms));
    ASSERT_OK(transport);
    ranks[static_cast<size_t>(rank)] = std::move(*transport);
  });
  ASSERT_TRUE(ranks[0] != nullptr && ranks[1] != nullptr);
  std::array<std::byte, 64> buffer;
  Operation receive = ranks[0]->Recv(1, MakeTag(2, 1), buffer);

  is_silent.store(true);
  const Status status = receive.Wait(testing::Soon());

  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.culprit(), 1);
  EXPECT_TRUE(testing::Has(status.message(), "(heartbeat timeout 0.3 s)")) << status;
}

TEST(TcpSilence, peers_that_only_beat_are_alive) {
  testing::TransportSet set = testing::MakeTcp(2, [](int) { return Beating(300ms); });
  ASSERT_EQ(set.ranks.size(), size_t{2});
  std::array<std::byte, 64> received, sent{};
  Operation receive = set.ranks[0]->Recv(1, MakeTag(0, 1), received);
  EXPECT_EQ(receive.Wait(After(900ms)).code(), Code::kTimedOut);

  Operation send = set.ranks[1]->Send(0, MakeTag(0, 1), sent);

  EXPECT_OK(send.Wait(testing::Soon()));
  EXPECT_OK(receive.Wait(testing::Soon()));
}

}  // namespace
}  // namespace rabit

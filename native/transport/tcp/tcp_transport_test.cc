#include "transport/tcp/tcp_transport.h"

#include <array>

#include "testing/tcp_job.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;
using testing::MakeTcp;
using testing::TcpJob;
using testing::TransportSet;

TransportSet MakePlain(int size) {
  return MakeTcp(size, [](int) { return TcpOptions{}; });
}

TransportSet MakeIpv6(int size) {
  const auto spins = [](int rank) {
    TcpOptions options;
    options.spin = {50us, 50us, rank % 2 == 1};
    return options;
  };
  return MakeTcp(size, spins, "[::1]:0");
}

// Everything small, so that every limit is reached: copies wait for their acknowledgement, nothing
// unexpected is stored, each message is cut over three connections.
TransportSet MakeNarrow(int size) {
  return MakeTcp(size, [](int) {
    TcpOptions options;
    options.connections_per_stream = 3;
    options.stripe_bytes_min = 1000;
    options.copied_bytes_max = 2000;
    options.retained_bytes_max = 4000;
    options.unexpected_bytes_soft = 1;
    options.spin = {20us, 20us};
    options.spin_bytes_max = 100;
    options.payload_checks = PayloadChecks::kOn;
    return options;
  });
}

[[maybe_unused]] const int kPlain =
    testing::RegisterTransportConformance({.suite = "TcpTransport", .make = MakePlain});
[[maybe_unused]] const int kIpv6 =
    testing::RegisterTransportConformance({.suite = "TcpTransportIpv6", .make = MakeIpv6});
[[maybe_unused]] const int kNarrow =
    testing::RegisterTransportConformance({.suite = "TcpTransportNarrow", .make = MakeNarrow});

TEST(TcpTransport, a_missing_rank_is_named_at_connect) {
  TcpJob job(2);
  Result<std::unique_ptr<Transport>> transport =
      ConnectTcpTransport(job.Context(0, 100ms), TcpOptions{});
  EXPECT_EQ(transport.status().code(), Code::kTimedOut);
  EXPECT_NE(transport.status().message().find("rank(s) 1"), std::string::npos)
      << transport.status();
}

TEST(TcpTransport, too_many_connections_are_refused) {
  TcpJob job(1);
  TcpOptions options;
  options.connections_per_stream = 65;
  Result<std::unique_ptr<Transport>> transport = ConnectTcpTransport(job.Context(0), options);
  EXPECT_EQ(transport.status().code(), Code::kInvalidArgument);
}

TEST(TcpTransport, one_rank_needs_nobody) {
  TransportSet set = MakePlain(1);
  ASSERT_EQ(set.ranks.size(), size_t{1});
  std::array<std::byte, 4> buffer{};
  EXPECT_EQ(set.ranks[0]->Send(0, 0, buffer).Wait(After(1s)).code(), Code::kInvalidArgument);
}

TEST(TcpTransport, a_stream_that_does_not_exist_is_refused) {
  TransportSet set = MakePlain(2);
  ASSERT_EQ(set.ranks.size(), size_t{2});
  std::array<std::byte, 4> buffer{};
  const Status status = set.ranks[0]->Send(1, MakeTag(9, 1), buffer).Wait(After(1s));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("stream 9"), std::string::npos) << status;
}

TEST(TcpTransport, only_the_chosen_peers_are_connected) {
  TransportSet set = MakeTcp(3, [](int rank) {
    TcpOptions options;
    options.peers = rank == 1 ? std::vector<int>{0, 2} : std::vector<int>{1};
    return options;
  });
  ASSERT_EQ(set.ranks.size(), size_t{3});
  std::array<std::byte, 4> buffer{};
  EXPECT_EQ(set.ranks[0]->Send(2, 1, buffer).Wait(After(1s)).code(), Code::kInvalidArgument);
  Operation receive = set.ranks[2]->Recv(1, 1, buffer);
  EXPECT_OK(set.ranks[1]->Send(2, 1, buffer).Wait(After(10s)));
  EXPECT_OK(receive.Wait(After(10s)));
}

// What was sent before the goodbye can still be received; what was not is an error at once.
TEST(TcpTransport, a_peer_that_closes_delivers_first_and_is_named_then) {
  TransportSet set = MakePlain(2);
  ASSERT_EQ(set.ranks.size(), size_t{2});
  std::vector<std::byte> message(5000, std::byte{3});
  std::vector<std::byte> received(5000);
  EXPECT_OK(set.ranks[1]->Send(0, MakeTag(0, 1), message).Wait(After(10s)));

  set.ranks[1].reset();

  std::array<std::byte, 4> never{};
  const Status status = set.ranks[0]->Recv(1, MakeTag(0, 2), never).Wait(After(10s));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.culprit(), 1);
  EXPECT_OK(set.ranks[0]->Recv(1, MakeTag(0, 1), received).Wait(After(10s)));
  EXPECT_TRUE(received == message);
}

// The first frame of an unasked-for message is left in the socket; what lies behind it must still
// arrive when somebody waits for that.
TEST(TcpTransport, a_large_message_that_nobody_asked_for_does_not_hold_up_what_lies_behind) {
  const testing::TransportSet set = testing::MakeTcp(2, [](int) { return TcpOptions{}; });
  ASSERT_EQ(set.ranks.size(), 2u);
  const std::vector<std::byte> large(3 << 20, std::byte{5});
  const std::vector<std::byte> small(100, std::byte{6});
  testing::RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    const Deadline deadline = After(std::chrono::seconds(20));
    if (rank == 0) {
      Operation first = transport.Send(1, MakeTag(0, 1), large);
      EXPECT_OK(transport.Send(1, MakeTag(0, 2), small).Wait(deadline));
      EXPECT_OK(first.Wait(deadline));
      return;
    }
    std::vector<std::byte> seen_small(small.size()), seen_large(large.size());
    EXPECT_OK(transport.Recv(0, MakeTag(0, 2), seen_small).Wait(deadline));
    EXPECT_OK(transport.Recv(0, MakeTag(0, 1), seen_large).Wait(deadline));
    EXPECT_TRUE(seen_small == small);
    EXPECT_TRUE(seen_large == large);
  });
}

}  // namespace
}  // namespace rabit

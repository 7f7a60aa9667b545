#include "base/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <string>
#include <thread>

#include "base/wire.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::Soon;

SocketAddress One(std::string_view text) {
  auto addresses = Resolve(text);
  EXPECT_OK(addresses);
  return addresses.ok() ? addresses->front() : SocketAddress{};
}

struct Pair {
  UniqueFd client;
  UniqueFd server;
};

Pair MakePair(std::string_view address) {
  auto listener = Listen(One(address), 4);
  EXPECT_OK(listener);
  auto client = Connect(*LocalAddress(listener->get()), Soon());
  EXPECT_OK(client);
  EXPECT_OK(WaitReadable(listener->get(), Soon()));
  UniqueFd server(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  return {std::move(*client), std::move(server)};
}

TEST(Socket, bytes_cross_ipv4_and_ipv6) {
  for (std::string_view address : {"127.0.0.1:0", "[::1]:0"}) {
    Pair pair = MakePair(address);
    std::vector<std::byte> sent(3 << 20, std::byte{7});
    std::vector<std::byte> seen(sent.size());
    std::thread writer([&] { EXPECT_OK(WriteFull(pair.client.get(), sent, Soon())); });
    EXPECT_OK(ReadFull(pair.server.get(), seen, Soon()));
    writer.join();

    EXPECT_TRUE(seen == sent) << address;
    EXPECT_OK(SetNoDelay(pair.client.get()));
    EXPECT_OK(SetPeerTimeout(pair.client.get(), std::chrono::seconds(5)));
  }
}

TEST(Socket, a_connection_knows_whether_it_stays_within_the_host) {
  for (std::string_view address : {"127.0.0.1:0", "[::1]:0"}) {
    EXPECT_TRUE(IsWithinHost(MakePair(address).client.get())) << address;
  }
  auto listener = Listen(One("0.0.0.0:0"), 4);
  ASSERT_OK(listener);
  const std::string port = LocalAddress(listener->get())->ToString().substr(8);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress other = One("127.0.0.2:0");
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&other.storage), other.bytes), 0);
  const SocketAddress to = One("127.0.0.1:" + port);
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.bytes), 0);

  EXPECT_FALSE(IsWithinHost(fd.get()));
  EXPECT_FALSE(IsWithinHost(-1));
}

// A host may have one interface of each family.
TEST(Socket, a_listener_at_every_address_takes_both_families) {
  auto listener = Listen(One("[::]:0"), 4);
  ASSERT_OK(listener);
  const std::string port = LocalAddress(listener->get())->ToString().substr(4);

  for (const std::string host : {"127.0.0.1", "[::1]"}) {
    EXPECT_OK(Connect(One(host + port), Soon()));
  }
}

TEST(Socket, a_connection_takes_reno) {
  for (std::string_view address : {"127.0.0.1:0", "[::1]:0"}) {
    const auto pair = MakePair(address);
    TakeReno(pair.client.get());

    char name[16] = {};
    socklen_t bytes = sizeof name;
    ASSERT_EQ(::getsockopt(pair.client.get(), IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
    EXPECT_EQ(std::string(name), "reno");
  }
}

TEST(Socket, addresses_print_as_they_are_written) {
  for (std::string_view text : {"127.0.0.1:80", "[::1]:65535"}) {
    EXPECT_EQ(One(text).ToString(), text);
  }
}

TEST(Socket, a_malformed_address_is_refused_with_the_forms_that_work) {
  for (std::string_view text :
       {"", ":", "host", ":80", "host:", "host:x", "1.2.3.4:65536", "::1:80", "[::1]", "[]:1"}) {
    auto result = Resolve(text);
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument) << text;
  }
  EXPECT_NE(Resolve("host").status().message().find("host:port"), std::string::npos);
}

TEST(Socket, a_host_that_does_not_resolve_is_named) {
  const Status status = Resolve("no-such-host.invalid:80").status();

  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("'no-such-host.invalid' does not resolve"), std::string::npos);
}

TEST(Socket, a_port_in_use_is_named) {
  auto first = Listen(One("127.0.0.1:0"), 1);
  ASSERT_OK(first);
  const std::string address = LocalAddress(first->get())->ToString();

  const Status status = Listen(One(address), 1).status();

  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find(address), std::string::npos) << status;
}

TEST(Socket, connecting_to_a_closed_port_says_that_another_try_may_help) {
  std::string address;
  {
    auto listener = Listen(One("127.0.0.1:0"), 1);
    ASSERT_OK(listener);
    address = LocalAddress(listener->get())->ToString();
  }
  const Status status = Connect(One(address), Soon()).status();

  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_NE(status.message().find(address), std::string::npos) << status;
}

TEST(Socket, reading_from_a_silent_peer_ends_at_the_deadline) {
  Pair pair = MakePair("127.0.0.1:0");
  std::byte one;

  const Status status =
      ReadFull(pair.server.get(), {&one, 1}, After(std::chrono::milliseconds(20)));

  EXPECT_EQ(status.code(), Code::kTimedOut);
}

TEST(Socket, a_closed_peer_is_lost_for_reading_and_writing) {
  Pair pair = MakePair("127.0.0.1:0");
  pair.client.reset();
  std::byte one{};

  EXPECT_EQ(ReadFull(pair.server.get(), {&one, 1}, Soon()).code(), Code::kPeerLost);
  Status status;
  while (status.ok()) status = WriteFull(pair.server.get(), {&one, 1}, Soon());
  EXPECT_EQ(status.code(), Code::kPeerLost);
}

}  // namespace
}  // namespace rabit

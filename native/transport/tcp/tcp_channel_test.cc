#include "transport/tcp/tcp_channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "base/crc32c.h"
#include "base/socket.h"
#include "rendezvous/memory_store.h"
#include "testing/channel_conformance.h"
#include "transport/tcp/channel_frame.h"

namespace rabit {
namespace {

using testing::ChannelSoon;
using testing::NextLoss;
using testing::NextMessage;

struct Loopback {
  UniqueFd a;
  UniqueFd b;
};

Loopback MakeLoopback() {
  auto listener = Listen(Resolve("127.0.0.1:0")->front(), 1);
  EXPECT_OK(listener);
  auto a = Connect(*LocalAddress(listener->get()), ChannelSoon());
  EXPECT_OK(a);
  EXPECT_OK(WaitReadable(listener->get(), ChannelSoon()));
  return {std::move(*a),
          UniqueFd(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC))};
}

ChannelOptions TestOptions(int timeout_ms = 10'000) {
  ChannelOptions options;
  options.spin = {std::chrono::microseconds(20), std::chrono::microseconds(20)};
  options.heartbeat_timeout = std::chrono::milliseconds(timeout_ms);
  return options;
}

// Connections made beforehand, of which a copy is kept to cut them.
class Fixture {
 public:
  explicit Fixture(int size) : ends_(static_cast<size_t>(size)), cuts_(static_cast<size_t>(size)) {
    for (int rank = 1; rank < size; ++rank) {
      Loopback pair = MakeLoopback();
      const int root_cut = ::fcntl(pair.a.get(), F_DUPFD_CLOEXEC, 0);
      cuts_[0].push_back(UniqueFd(root_cut));
      cuts_[static_cast<size_t>(rank)].push_back(
          UniqueFd(::fcntl(pair.b.get(), F_DUPFD_CLOEXEC, 0)));
      ends_[0].push_back({rank, std::move(pair.a)});
      ends_[static_cast<size_t>(rank)].push_back({0, std::move(pair.b)});
    }
  }
  // Every other rank gives its core away between two looks.
  std::unique_ptr<Channel> Connect(int rank) {
    ChannelOptions options = TestOptions();
    options.spin.yields = rank % 2 == 1;
    auto channel =
        MakeTcpChannel(rank, static_cast<int>(ends_.size()),
                       std::move(ends_[static_cast<size_t>(rank)]), options, ChannelSoon());
    EXPECT_OK(channel);
    return channel.ok() ? std::move(*channel) : nullptr;
  }
  void Kill(int rank) {
    for (UniqueFd& fd : cuts_[static_cast<size_t>(rank)]) ::shutdown(fd.get(), SHUT_RDWR);
  }

 private:
  std::vector<std::vector<ChannelConnection>> ends_;
  std::vector<std::vector<UniqueFd>> cuts_;
};

RABIT_CHANNEL_SUITE(TcpChannel, Fixture);

// A channel of rank 0 whose only peer is written by hand.
struct HandMade {
  explicit HandMade(int timeout_ms = 10'000) {
    Loopback pair = MakeLoopback();
    peer = std::move(pair.b);
    EXPECT_OK(SetNoDelay(peer.get()));  // what waits unsent is dropped by a close that resets
    std::vector<ChannelConnection> connections;
    connections.push_back({1, std::move(pair.a)});
    Introduce();
    auto made =
        MakeTcpChannel(0, 2, std::move(connections), TestOptions(timeout_ms), ChannelSoon());
    EXPECT_OK(made);
    if (made.ok()) channel = std::move(*made);
  }
  void Introduce() { SendFrame(ChannelFrameKind::kIntroduction, EncodeIntroduction({"far", 77})); }
  void SendFrame(ChannelFrameKind kind, ConstBytes payload) {
    const ChannelHeader header = EncodeChannelHeader(kind, sequence++, payload);
    EXPECT_OK(WriteFull(peer.get(), header, ChannelSoon()));
    EXPECT_OK(WriteFull(peer.get(), payload, ChannelSoon()));
  }
  UniqueFd peer;
  uint64_t sequence = 0;
  std::unique_ptr<Channel> channel;
};

TEST(TcpChannel, a_closed_connection_is_a_loss_that_names_host_and_process) {
  HandMade made;
  made.SendFrame(ChannelFrameKind::kMessage, AsBytes("last"));
  made.peer.reset();

  EXPECT_EQ(AsText(NextMessage(*made.channel).payload), "last");
  const Status loss = NextLoss(*made.channel);
  EXPECT_EQ(loss.culprit(), 1);
  EXPECT_NE(
      loss.message().find("rank 1 (host far, pid 77) closed its connection without saying goodbye"),
      std::string::npos)
      << loss;
}

TEST(TcpChannel, a_reset_found_by_send_is_still_reported_once_by_receive) {
  HandMade made;
  const linger at_once = {1, 0};
  ::setsockopt(made.peer.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  made.peer.reset();
  Status status;
  const Deadline deadline = ChannelSoon();
  while (status.ok() && std::chrono::steady_clock::now() < deadline) {
    status = made.channel->Send(1, AsBytes("x"));
  }

  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(NextLoss(*made.channel).culprit(), 1);
  auto after = made.channel->Receive(After(std::chrono::milliseconds(1)));
  ASSERT_OK(after);
  EXPECT_FALSE(after->has_value());
}

TEST(TcpChannel, a_goodbye_in_front_of_a_reset_is_not_a_loss) {
  HandMade made;
  made.SendFrame(ChannelFrameKind::kMessage, AsBytes("last"));
  made.SendFrame(ChannelFrameKind::kGoodbye, {});
  made.peer.reset();
  Status status;
  const Deadline deadline = ChannelSoon();
  while (status.ok() && std::chrono::steady_clock::now() < deadline) {
    status = made.channel->Send(1, AsBytes("x"));
  }

  EXPECT_EQ(status.code(), Code::kAborted) << status;
  EXPECT_EQ(AsText(NextMessage(*made.channel).payload), "last");
  auto after = made.channel->Receive(After(std::chrono::milliseconds(1)));
  EXPECT_OK(after);
}

TEST(TcpChannel, a_silent_peer_is_lost_after_the_heartbeat_timeout) {
  HandMade made(200);
  const auto start = std::chrono::steady_clock::now();
  const Status loss = NextLoss(*made.channel);

  EXPECT_EQ(loss.culprit(), 1);
  EXPECT_NE(loss.message().find("(heartbeat timeout 0.2 s)"), std::string::npos) << loss;
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(190));
}

TEST(TcpChannel, idle_ranks_keep_each_other_alive) {
  testing::RunChannelCase<Fixture>(2, [](Channel& channel, const std::function<void(int)>&) {
    auto received = channel.Receive(After(std::chrono::milliseconds(300)));
    EXPECT_OK(received);
  });
  // Beats alone count: no message is sent here and the timeout is far shorter than the wait.
  HandMade made(200);
  std::atomic<bool> is_over{false};
  std::thread beats([&] {
    while (!is_over.load()) {
      made.SendFrame(ChannelFrameKind::kBeat, {});
      ::usleep(20'000);
    }
  });
  auto received = made.channel->Receive(After(std::chrono::milliseconds(700)));
  is_over.store(true);
  beats.join();
  EXPECT_OK(received);
}

TEST(TcpChannel, beats_are_sent_while_the_engine_thread_is_elsewhere) {
  HandMade made(200);
  ChannelHeader header;
  uint64_t sequence = 0;
  for (int frame = 0; frame < 5; ++frame) {
    ASSERT_OK(ReadFull(made.peer.get(), header, ChannelSoon()));
    auto info = DecodeChannelHeader(header, sequence++);
    ASSERT_OK(info);
    std::vector<std::byte> payload(info->payload_bytes);
    ASSERT_OK(ReadFull(made.peer.get(), payload, ChannelSoon()));
    EXPECT_TRUE(info->kind ==
                (frame == 0 ? ChannelFrameKind::kIntroduction : ChannelFrameKind::kBeat));
  }
}

TEST(TcpChannel, a_late_reader_accuses_nobody) {
  // Beats pile up while nobody calls Receive for three timeouts.
  HandMade made(150);
  for (int i = 0; i < 25; ++i) {
    made.SendFrame(ChannelFrameKind::kBeat, {});
    ::usleep(20'000);
  }
  auto received = made.channel->Receive(After(std::chrono::milliseconds(0)));
  EXPECT_OK(received);
}

TEST(TcpChannel, corrupt_frames_lose_the_peer_and_say_why) {
  struct Case {
    size_t offset;
    std::string_view text;
  };
  for (const Case& corrupt : {Case{0, "claims"}, Case{4, "version"}, Case{5, "unknown kind"},
                              Case{8, "was due"}, Case{16, "checksum"}, Case{21, "checksum"}}) {
    HandMade made;
    std::vector<std::byte> frame;
    const ChannelHeader header =
        EncodeChannelHeader(ChannelFrameKind::kMessage, made.sequence, AsBytes("hello"));
    frame.assign(header.begin(), header.end());
    for (std::byte byte : AsBytes("hello")) frame.push_back(byte);
    frame[corrupt.offset + (corrupt.offset == 0 ? 3 : 0)] ^= std::byte{0x40};
    ASSERT_OK(WriteFull(made.peer.get(), frame, ChannelSoon()));

    const Status loss = NextLoss(*made.channel);
    EXPECT_EQ(loss.culprit(), 1);
    EXPECT_NE(loss.message().find(corrupt.text), std::string::npos) << loss;
  }
}

TEST(TcpChannel, frames_cut_at_every_byte_are_losses_not_messages) {
  std::vector<std::byte> frame;
  const ChannelHeader header = EncodeChannelHeader(ChannelFrameKind::kMessage, 1, AsBytes("hello"));
  frame.assign(header.begin(), header.end());
  for (std::byte byte : AsBytes("hello")) frame.push_back(byte);
  for (size_t cut = 0; cut < frame.size(); ++cut) {
    HandMade made;
    ASSERT_OK(WriteFull(made.peer.get(), ConstBytes(frame).first(cut), ChannelSoon()));
    made.peer.reset();
    auto received = made.channel->Receive(ChannelSoon());
    EXPECT_EQ(received.status().culprit(), 1) << cut;
  }
}

TEST(TcpChannel, random_bytes_are_losses_not_messages) {
  std::mt19937 random(31);
  for (int round = 0; round < 300; ++round) {
    HandMade made;
    std::vector<std::byte> bytes(random() % 100 + 20);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    ASSERT_OK(WriteFull(made.peer.get(), bytes, ChannelSoon()));
    auto received = made.channel->Receive(ChannelSoon());
    EXPECT_EQ(received.status().culprit(), 1);
  }
}

// The bytes on the wire may only change together with the version.
TEST(TcpChannel, frame_bytes_are_frozen) {
  const ChannelHeader header =
      EncodeChannelHeader(ChannelFrameKind::kMessage, 0x0102030405060708, AsBytes("abc"));
  const unsigned expected[16] = {3, 0, 0, 0, 1, 2, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(std::to_integer<unsigned>(header[i]), expected[i]) << i;
  std::vector<std::byte> covered(header.begin(), header.begin() + 16);
  for (std::byte byte : AsBytes("abc")) covered.push_back(byte);
  EXPECT_EQ(LoadLittle<uint32_t>(header.data() + 16), Crc32cExtendPortable(0, covered));
}

struct Job {
  explicit Job(int size) : Job(RankTree::Star(size)) {}
  explicit Job(RankTree given) : tree(std::move(given)), size(tree.size()) {
    secret.key.fill(5);
    topology.host_of.assign(static_cast<size_t>(size), 0);
    for (int rank = 0; rank < size; ++rank) {
      auto listener = Listener::Open("127.0.0.1:0", secret, 3, rank);
      EXPECT_OK(listener);
      EXPECT_OK(store.Set("3/address/" + std::to_string(rank), (*listener)->address()));
      listeners.push_back(std::move(*listener));
    }
  }
  Result<std::unique_ptr<Channel>> Connect(int rank, Deadline deadline = ChannelSoon()) {
    const ConnectContext context = {
        rank, size, 3, store, *listeners[static_cast<size_t>(rank)], secret, topology, 2, deadline};
    return ConnectTcpChannel(context, tree, TestOptions());
  }
  const RankTree tree;
  const int size;
  Secret secret;
  Topology topology;
  MemoryStore store;
  std::vector<std::unique_ptr<Listener>> listeners;
};

TEST(TcpChannel, ranks_find_each_other_through_store_and_listener) {
  Job job(4);
  testing::RunRanks(4, [&](int rank) {
    auto channel = job.Connect(rank);
    ASSERT_OK(channel);
    EXPECT_EQ((*channel)->rank(), rank);
    EXPECT_EQ((*channel)->size(), 4);
    testing::ChannelMessagesArriveWholeAndInOrder(**channel, nullptr);
  });
}

TEST(TcpChannel, ranks_that_do_not_come_are_named) {
  Job job(4);
  const Deadline deadline = After(std::chrono::milliseconds(300));
  testing::RunRanks(2, [&](int rank) {
    const Status status = job.Connect(rank == 0 ? 0 : 2, deadline).status();
    EXPECT_EQ(status.code(), rank == 0 ? Code::kTimedOut : status.code());
    EXPECT_FALSE(status.ok());
    if (rank == 0) {
      EXPECT_NE(status.message().find("rank 1, 3;"), std::string::npos) << status;
    } else {
      EXPECT_NE(status.message().find("rank 2 has no control channel to rank 0"), std::string::npos)
          << status;
    }
  });
}

TEST(TcpChannel, a_job_of_one_rank_can_be_woken) {
  auto channel = MakeTcpChannel(0, 1, {}, TestOptions(), ChannelSoon());
  ASSERT_OK(channel);
  std::thread other([&] { (*channel)->Wake(); });
  EXPECT_OK((*channel)->Receive(ChannelSoon()));
  other.join();
}

}  // namespace
}  // namespace rabit

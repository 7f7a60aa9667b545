#include "transport/tcp/tcp_channel.h"

#include <array>
#include <atomic>
#include <set>
#include <thread>

#include "base/socket.h"
#include "testing/bad_wire.h"
#include "testing/channel_conformance.h"
#include "testing/memory_store.h"
#include "testing/mortal_listener.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/heartbeat.h"
#include "transport/tcp/introduction.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;
using testing::BadWire;
using testing::ChannelSoon;
using testing::MortalListener;
using testing::NextLoss;
using testing::NextMessage;

ChannelOptions TestOptions(std::chrono::milliseconds timeout = 10s) {
  ChannelOptions options;
  options.spin = {std::chrono::microseconds(20), std::chrono::microseconds(20)};
  options.heartbeat_timeout = timeout;
  return options;
}

// What the channels borrow.
struct Job {
  explicit Job(int size) : Job(RankTree::Star(size)) {}
  explicit Job(RankTree given) : tree(std::move(given)), size(tree.size()) {
    secret.key.fill(5);
    topology.host_of.assign(static_cast<size_t>(size), 0);
    for (int rank = 0; rank < size; ++rank) {
      auto listener = Listener::Open("127.0.0.1:0", secret, 3, rank);
      EXPECT_OK(listener);
      listeners.push_back(std::make_unique<MortalListener>(std::move(*listener)));
      SetAddress(rank, listeners.back()->address());
    }
  }
  void SetAddress(int rank, const std::string& address) {
    EXPECT_OK(store.Set("3/address/" + std::to_string(rank), address));
  }
  Result<std::unique_ptr<Channel>> Connect(int rank, const ChannelOptions& options = TestOptions(),
                                           Deadline deadline = ChannelSoon()) {
    const ConnectContext context = {
        rank, size, 3, store, *listeners[static_cast<size_t>(rank)], secret, topology, 2, deadline};
    return ConnectTcpChannel(context, tree, options);
  }
  // The two ends of a job of two.
  std::array<std::unique_ptr<Channel>, 2> ConnectBoth(const ChannelOptions& options) {
    std::array<std::unique_ptr<Channel>, 2> ends;
    testing::RunRanks(2, [&](int rank) {
      auto channel = Connect(rank, options);
      ASSERT_OK(channel);
      ends[static_cast<size_t>(rank)] = std::move(*channel);
    });
    return ends;
  }
  const RankTree tree;
  const int size;
  Secret secret;
  Topology topology;
  testing::MemoryStore store;
  std::vector<std::unique_ptr<MortalListener>> listeners;
};

class Fixture {
 public:
  explicit Fixture(int size) : job_(size) {}
  // Every other rank gives its core away between two looks.
  std::unique_ptr<Channel> Connect(int rank) {
    ChannelOptions options = TestOptions();
    options.spin.yields = rank % 2 == 1;
    auto channel = job_.Connect(rank, options);
    EXPECT_OK(channel);
    return channel.ok() ? std::move(*channel) : nullptr;
  }
  void Kill(int rank) {
    job_.listeners[static_cast<size_t>(rank)]->Die();
    for (const auto& listener : job_.listeners) listener->Shun(rank);
  }

 private:
  Job job_;
};

RABIT_CHANNEL_SUITE(TcpChannel, Fixture);

TEST(TcpChannel, the_last_words_of_a_dead_rank_come_before_the_news_of_its_death) {
  Job job(2);
  auto [root, dying] = job.ConnectBoth(TestOptions());
  ASSERT_TRUE(root != nullptr && dying != nullptr);
  EXPECT_OK(dying->Send(0, AsBytes("last")));
  EXPECT_EQ(AsText(NextMessage(*root).payload), "last");
  const auto start = std::chrono::steady_clock::now();
  job.listeners[1]->Die();
  job.listeners[0]->Shun(1);
  const Status loss = NextLoss(*root);
  EXPECT_EQ(loss.culprit(), 1);
  EXPECT_NE(loss.message().find("pid "), std::string::npos) << loss;
  EXPECT_NE(loss.message().find("its port refuses connections"), std::string::npos) << loss;
  // A dead process is told by its closed connection and its closed port, not by a timeout.
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
  auto after = root->Receive(After(1ms));
  ASSERT_OK(after);
  EXPECT_FALSE(after->has_value());
}

TEST(TcpChannel, a_goodbye_is_not_a_loss) {
  Job job(2);
  auto [root, leaving] = job.ConnectBoth(TestOptions());
  ASSERT_TRUE(root != nullptr && leaving != nullptr);
  EXPECT_OK(leaving->Send(0, AsBytes("last")));
  leaving.reset();
  EXPECT_EQ(AsText(NextMessage(*root).payload), "last");
  Status status;
  const Deadline deadline = ChannelSoon();
  while ((status = root->Send(1, AsBytes("x"))).ok() &&
         std::chrono::steady_clock::now() < deadline) {
    EXPECT_OK(root->Receive(After(1ms)));
  }
  EXPECT_EQ(status.code(), Code::kAborted) << status;
}

// Numbered messages both ways; every one must come once, whole and in order.
void ExchangeNumbered(std::array<std::unique_ptr<Channel>, 2>& ends, int messages,
                      const std::function<void(int message)>& before = {}) {
  testing::RunRanks(2, [&](int rank) {
    Channel& channel = *ends[static_cast<size_t>(rank)];
    const auto size_of = [](int i) { return static_cast<size_t>(i % 10 == 0 ? 20000 : i % 300); };
    for (int i = 0; i < messages; ++i) {
      if (rank == 0 && before) before(i);
      EXPECT_OK(
          channel.Send(1 - rank, testing::Pattern(size_of(i), static_cast<unsigned>(i + rank))));
      const ChannelMessage message = NextMessage(channel);
      EXPECT_TRUE(testing::SameBytes(
          message.payload, testing::Pattern(size_of(i), static_cast<unsigned>(i + 1 - rank))))
          << "message" << i << "on rank" << rank;
      if (testing::CurrentTestFailed()) return;
    }
  });
}

TEST(TcpChannel, broken_connections_come_back_and_lose_nothing) {
  Job job(2);
  auto ends = job.ConnectBoth(TestOptions());
  ASSERT_TRUE(ends[0] != nullptr && ends[1] != nullptr);
  ExchangeNumbered(ends, 100, [&](int message) {
    if (message % 10 == 5) job.listeners[0]->Cut(1);
  });
}

TEST(TcpChannel, flipped_bits_are_healed) {
  testing::BitFlipper flipper(17);
  std::atomic<int> flips{0};
  Job job(2);
  BadWire wire(job.listeners[0]->address(), [&](const BadWire::Piece& piece) {
    if (testing::IsBehindHandshake(piece.is_answer, piece.offset) && flipper.Hit(piece.bytes)) {
      ++flips;
    }
    return BadWire::Fate::kPass;
  });
  job.SetAddress(0, wire.address());
  auto ends = job.ConnectBoth(TestOptions());
  ASSERT_TRUE(ends[0] != nullptr && ends[1] != nullptr);
  ExchangeNumbered(ends, 3000);
  EXPECT_GT(flips.load(), 100);
}

TEST(TcpChannel, bytes_that_vanish_inside_a_frame_are_sent_again) {
  Job job(2);
  std::set<int> hit;
  BadWire wire(job.listeners[0]->address(), [&](const BadWire::Piece& piece) {
    const bool is_hit =
        piece.connection < 2 && piece.offset > 300 && hit.insert(piece.connection).second;
    return is_hit ? BadWire::Fate::kSwallowOneByte : BadWire::Fate::kPass;
  });
  job.SetAddress(0, wire.address());
  auto ends = job.ConnectBoth(TestOptions(800ms));
  ASSERT_TRUE(ends[0] != nullptr && ends[1] != nullptr);
  ExchangeNumbered(ends, 60);
}

TEST(TcpChannel, a_connection_that_swallows_everything_is_replaced) {
  Job job(2);
  BadWire wire(job.listeners[0]->address(), [](const BadWire::Piece& piece) {
    const bool is_hit = piece.connection == 0 && piece.offset > 1000;
    return is_hit ? BadWire::Fate::kSwallow : BadWire::Fate::kPass;
  });
  job.SetAddress(0, wire.address());
  auto ends = job.ConnectBoth(TestOptions(800ms));
  ASSERT_TRUE(ends[0] != nullptr && ends[1] != nullptr);
  ExchangeNumbered(ends, 60);
}

TEST(TcpChannel, a_silent_peer_is_lost_after_the_heartbeat_timeout) {
  Job job(2);
  std::atomic<bool> is_silent{false};
  BadWire wire(job.listeners[0]->address(), [&](const BadWire::Piece&) {
    return is_silent.load() ? BadWire::Fate::kSwallow : BadWire::Fate::kPass;
  });
  job.SetAddress(0, wire.address());
  auto ends = job.ConnectBoth(TestOptions(200ms));
  ASSERT_TRUE(ends[0] != nullptr && ends[1] != nullptr);
  const auto start = std::chrono::steady_clock::now();
  is_silent.store(true);
  const Status loss = NextLoss(*ends[0]);
  EXPECT_EQ(loss.culprit(), 1);
  EXPECT_NE(loss.message().find("(heartbeat timeout 0.2 s)"), std::string::npos) << loss;
  EXPECT_GE(std::chrono::steady_clock::now() - start, 150ms);
}

TEST(TcpChannel, idle_ranks_keep_each_other_alive_whatever_their_engine_threads_do) {
  Job job(2);
  auto ends = job.ConnectBoth(TestOptions(300ms));
  ASSERT_TRUE(ends[0] != nullptr && ends[1] != nullptr);
  // Rank 1 never calls Receive, and rank 0 does so for three timeouts.
  const Deadline end = After(900ms);
  while (std::chrono::steady_clock::now() < end) EXPECT_OK(ends[0]->Receive(end));
  EXPECT_OK(ends[1]->Receive(After(0ms)));
}

TEST(TcpChannel, whoever_was_held_up_accuses_nobody) {
  const Deadline start{};
  Heartbeat heartbeat(800ms, start);
  EXPECT_FALSE(heartbeat.IsDue(start + 99ms));
  EXPECT_TRUE(heartbeat.IsDue(start + 110ms));
  EXPECT_TRUE(heartbeat.IsSteady(start + 110ms));
  EXPECT_TRUE(heartbeat.IsDue(start + 900ms));
  EXPECT_FALSE(heartbeat.IsSteady(start + 900ms));
  EXPECT_FALSE(heartbeat.IsSteady(start + 1600ms));
  EXPECT_TRUE(heartbeat.IsSteady(start + 1700ms));
  EXPECT_FALSE(Heartbeat(0ms, start).IsDue(start + 1h));
}

TEST(TcpChannel, a_peer_is_looked_at_with_each_beat_and_when_its_time_is_over) {
  const Deadline start{};
  Heartbeat heartbeat(800ms, start);
  EXPECT_FALSE(heartbeat.MustLook(start + 99ms));
  EXPECT_TRUE(heartbeat.IsDue(start + 100ms));
  EXPECT_TRUE(heartbeat.MustLook(start + 100ms));
  EXPECT_EQ(heartbeat.next(start + 100ms), start + 200ms);

  heartbeat.Expect(start + 170ms);
  heartbeat.Expect(start + 900ms);

  EXPECT_EQ(heartbeat.next(start + 100ms), start + 170ms);
  EXPECT_FALSE(heartbeat.IsDue(start + 170ms));
  EXPECT_TRUE(heartbeat.MustLook(start + 170ms));
  EXPECT_EQ(heartbeat.next(start + 170ms), start + 200ms);
}

TEST(TcpChannel, a_peer_that_falls_silent_is_given_up_within_the_timeout) {
  EXPECT_EQ(Heartbeat(800ms, {}).silence_max(), 750ms);
  EXPECT_EQ(Heartbeat(3s, {}).silence_max(), 2813ms);
  EXPECT_EQ(Heartbeat(60s, {}).silence_max(), 59800ms);
}

TEST(TcpChannel, introductions_come_through_and_others_are_refused) {
  const std::vector<std::byte> payload = Encode(Introduction{"far", 77});
  auto introduction = DecodeIntroduction(payload);
  ASSERT_OK(introduction);
  EXPECT_EQ(introduction->host, "far");
  EXPECT_EQ(introduction->pid, 77);
  EXPECT_FALSE(DecodeIntroduction(ConstBytes(payload).first(payload.size() - 1)).ok());
}

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
  const Deadline deadline = After(5s);  // in which those that come find each other
  testing::RunRanks(2, [&](int rank) {
    // Rank 2 has started first, and is not the one to blame.
    const Status status = rank == 0 ? job.Connect(0, TestOptions(), deadline).status()
                                    : job.Connect(2, TestOptions(), deadline - 500ms).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.culprit(), rank == 0 ? 1 : 0) << status;
    if (rank == 0) {
      EXPECT_EQ(status.code(), Code::kTimedOut);
      EXPECT_NE(status.message().find("rank(s) 1, 3 "), std::string::npos) << status;
    }
  });
}

TEST(TcpChannel, a_job_of_one_rank_can_be_woken) {
  Job job(1);
  auto channel = job.Connect(0);
  ASSERT_OK(channel);
  std::thread other([&] { (*channel)->Wake(); });
  EXPECT_OK((*channel)->Receive(ChannelSoon()));
  other.join();
}

}  // namespace
}  // namespace rabit

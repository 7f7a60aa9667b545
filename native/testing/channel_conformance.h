// What every Channel must do.  RABIT_CHANNEL_SUITE(Name, Fixture) registers the cases for one
// implementation.  A Fixture is made from a size and offers
//   std::unique_ptr<Channel> Connect(int rank)  called by each rank's own thread;
//   void Kill(int rank)                         the others then see that rank die without goodbye.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/wire.h"
#include "testing/meeting.h"
#include "testing/own_memory.h"
#include "testing/run_ranks.h"
#include "testing/same_bytes.h"
#include "testing/test.h"
#include "transport/channel.h"
#include "transport/channel_options.h"

namespace rabit::testing {

inline Deadline ChannelSoon() { return After(std::chrono::seconds(20)); }

// The next message, past wake-ups; a failure and an empty message if there is none in time.
inline ChannelMessage NextMessage(Channel& channel) {
  const Deadline deadline = ChannelSoon();
  while (std::chrono::steady_clock::now() < deadline) {
    auto received = channel.Receive(deadline);
    if (!received.ok()) {
      ADD_FAILURE() << received.status();
      return {};
    }
    if (*received) return std::move(**received);
  }
  ADD_FAILURE() << "no message on rank" << channel.rank();
  return {};
}

// The next error of Receive; messages are dropped.
inline Status NextLoss(Channel& channel) {
  const Deadline deadline = ChannelSoon();
  while (std::chrono::steady_clock::now() < deadline) {
    auto received = channel.Receive(deadline);
    if (!received.ok()) return received.status();
  }
  return TimedOut("no loss was reported");
}

// Every case gets one channel per rank and runs on one thread per rank.
using ChannelCase = void (*)(Channel& channel, const std::function<void(int)>& kill);

inline void ChannelMessagesArriveWholeAndInOrder(Channel& channel,
                                                 const std::function<void(int)>&) {
  constexpr int kMessages = 300;
  const auto size_of = [](int i) { return static_cast<size_t>(i * i * 3 % 5000); };
  if (channel.rank() != 0) {
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_OK(channel.Send(0, Pattern(size_of(i), static_cast<unsigned>(i + channel.rank()))));
    }
    EXPECT_EQ(AsText(NextMessage(channel).payload), "done");
    return;
  }
  std::vector<int> seen(static_cast<size_t>(channel.size()), 0);
  for (int n = 0; n < kMessages * (channel.size() - 1); ++n) {
    const ChannelMessage message = NextMessage(channel);
    ASSERT_GT(message.peer, 0);
    const int i = seen[static_cast<size_t>(message.peer)]++;
    EXPECT_TRUE(
        SameBytes(message.payload, Pattern(size_of(i), static_cast<unsigned>(i + message.peer))));
  }
  for (int rank = 1; rank < channel.size(); ++rank) EXPECT_OK(channel.Send(rank, AsBytes("done")));
}

inline void ChannelTheLargestMessagePassesAndALargerOneIsRefused(Channel& channel,
                                                                 const std::function<void(int)>&) {
  const std::vector<std::byte> large = Pattern(kChannelMessageBytesMax, 1);
  if (channel.rank() != 0) {
    EXPECT_TRUE(SameBytes(NextMessage(channel).payload, large));
    EXPECT_OK(channel.Send(0, large));
    EXPECT_EQ(AsText(NextMessage(channel).payload), "done");
    return;
  }
  std::vector<std::byte> larger(kChannelMessageBytesMax + 1);
  EXPECT_EQ(channel.Send(1, larger).code(), Code::kInvalidArgument);
  for (int rank = 1; rank < channel.size(); ++rank) EXPECT_OK(channel.Send(rank, large));
  for (int n = 1; n < channel.size(); ++n)
    EXPECT_TRUE(SameBytes(NextMessage(channel).payload, large));
  for (int rank = 1; rank < channel.size(); ++rank) EXPECT_OK(channel.Send(rank, AsBytes("done")));
}

// Both sides send until the queue is full before either receives: nobody waits, nothing is lost.
inline void ChannelSendNeverWaitsAndItsQueueIsBounded(Channel& channel,
                                                      const std::function<void(int)>&) {
  const std::vector<std::byte> message = Pattern(1 << 20, 5);
  const int peer = channel.rank() == 0 ? 1 : 0;
  if (channel.rank() > 1) return;  // the pair 0, 1 is enough
  int sent = 0;
  Status status;
  while (sent < 200 && (status = channel.Send(peer, message)).ok()) ++sent;
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status;
  EXPECT_GE(sent, static_cast<int>(kChannelQueueBytesMax / message.size()) - 1);
  static Meeting both_are_full(2);  // a rank that received already would make room
  both_are_full.Await();
  int seen = 0;
  int expected = -1;
  bool has_told = false;
  while (expected < 0 || seen < expected) {
    const ChannelMessage received = NextMessage(channel);
    if (received.payload.size() == message.size()) {
      ++seen;
      EXPECT_TRUE(SameBytes(received.payload, message));
    } else {
      ASSERT_EQ(received.payload.size(), 8u);
      expected = static_cast<int>(LoadLittle<uint64_t>(received.payload.data()));
    }
    std::vector<std::byte> count;
    WireWriter(count).U64(static_cast<uint64_t>(sent));
    if (!has_told) has_told = channel.Send(peer, count).ok();
  }
  while (!has_told) {
    std::vector<std::byte> count;
    WireWriter(count).U64(static_cast<uint64_t>(sent));
    has_told = channel.Send(peer, count).ok();
    if (!has_told) {
      EXPECT_OK(channel.Receive(After(std::chrono::milliseconds(1))));
    }
  }
  EXPECT_EQ(seen, expected);
  // What is queued leaves while its owner receives, so both do until both have everything.
  EXPECT_OK(channel.Send(peer, AsBytes("end")));
  EXPECT_EQ(AsText(NextMessage(channel).payload), "end");
}

inline void ChannelReceiveEndsAtTheDeadline(Channel& channel, const std::function<void(int)>&) {
  for (int ms : {0, 1, 15}) {
    const auto start = std::chrono::steady_clock::now();
    auto received = channel.Receive(start + std::chrono::milliseconds(ms));
    ASSERT_OK(received);
    EXPECT_FALSE(received->has_value());
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(ms));
  }
}

inline void ChannelWakeEndsThisReceiveOrTheNext(Channel& channel, const std::function<void(int)>&) {
  for (int i = 0; i < 100; ++i) {
    channel.Wake();
    auto received = channel.Receive(ChannelSoon());
    ASSERT_OK(received);
    EXPECT_FALSE(received->has_value());
  }
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    std::thread other([&] { channel.Wake(); });
    EXPECT_OK(channel.Receive(ChannelSoon()));
    other.join();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

inline void ChannelOnlyTheStarsEdgesExist(Channel& channel, const std::function<void(int)>&) {
  for (int peer : {-1, channel.size(), channel.rank(), channel.rank() == 1 ? 2 : 99}) {
    EXPECT_EQ(channel.Send(peer, {}).code(), Code::kInvalidArgument) << peer;
  }
}

inline void ChannelPingPong(Channel& channel, const std::function<void(int)>&) {
  if (channel.rank() > 1) return;
  for (int i = 0; i < 500; ++i) {
    if (channel.rank() == 0) {
      EXPECT_OK(channel.Send(1, Pattern(64, static_cast<unsigned>(i))));
      EXPECT_TRUE(NextMessage(channel).payload == Pattern(63, static_cast<unsigned>(i)));
    } else {
      EXPECT_TRUE(NextMessage(channel).payload == Pattern(64, static_cast<unsigned>(i)));
      EXPECT_OK(channel.Send(0, Pattern(63, static_cast<unsigned>(i))));
    }
  }
}

inline void ChannelADeadPeerIsNamedAndTheOthersStayUsable(Channel& channel,
                                                          const std::function<void(int)>& kill) {
  if (channel.rank() == 0) {
    for (int rank = 1; rank < channel.size(); ++rank) NextMessage(channel);
    kill(1);
    const Status loss = NextLoss(channel);
    EXPECT_EQ(loss.code(), Code::kPeerLost);
    EXPECT_EQ(loss.culprit(), 1);
    EXPECT_NE(loss.message().find("rank 1"), std::string::npos) << loss;
    const Status refused = channel.Send(1, AsBytes("x"));
    EXPECT_EQ(refused.code(), Code::kPeerLost);
    EXPECT_EQ(refused.culprit(), 1);
    for (int rank = 2; rank < channel.size(); ++rank) EXPECT_OK(channel.Send(rank, AsBytes("go")));
    for (int rank = 2; rank < channel.size(); ++rank) {
      EXPECT_EQ(AsText(NextMessage(channel).payload), "still here");
    }
    for (int rank = 2; rank < channel.size(); ++rank) EXPECT_OK(channel.Send(rank, AsBytes("end")));
    return;
  }
  EXPECT_OK(channel.Send(0, AsBytes("ready")));
  if (channel.rank() == 1) return;
  EXPECT_EQ(AsText(NextMessage(channel).payload), "go");
  EXPECT_OK(channel.Send(0, AsBytes("still here")));
  EXPECT_EQ(AsText(NextMessage(channel).payload), "end");
}

// The dead rank's channel is not destroyed before the survivors have seen the death.
inline void ChannelTheDeathOfRankZeroReachesEveryRank(Channel& channel,
                                                      const std::function<void(int)>& kill) {
  if (channel.rank() == 0) {
    for (int rank = 1; rank < channel.size(); ++rank) NextMessage(channel);
    kill(0);
    return;
  }
  EXPECT_OK(channel.Send(0, AsBytes("ready")));
  const Status loss = NextLoss(channel);
  EXPECT_EQ(loss.code(), Code::kPeerLost);
  EXPECT_EQ(loss.culprit(), 0);
}

template <class Fixture>
void RunChannelCase(int size, ChannelCase body) {
  Fixture fixture(size);
  const std::function<void(int)> kill = [&](int rank) { fixture.Kill(rank); };
  std::vector<std::unique_ptr<Channel>> channels(static_cast<size_t>(size));
  RunRanks(size, [&](int rank) {
    std::unique_ptr<Channel>& mine = channels[static_cast<size_t>(rank)];
    mine = fixture.Connect(rank);
    if (mine != nullptr) body(*mine, kill);
  });
}

// One rank leaves in order while the others go on.
template <class Fixture>
void ChannelGoodbyeIsNotALoss() {
  Fixture fixture(3);
  RunRanks(3, [&](int rank) {
    std::unique_ptr<Channel> channel = fixture.Connect(rank);
    if (channel == nullptr) return;
    if (rank == 1) {
      EXPECT_OK(channel->Send(0, AsBytes("last words")));
      return;
    }
    if (rank == 2) {
      EXPECT_EQ(AsText(NextMessage(*channel).payload), "question");
      EXPECT_OK(channel->Send(0, AsBytes("answer")));
      EXPECT_EQ(AsText(NextMessage(*channel).payload), "end");
      return;
    }
    EXPECT_EQ(AsText(NextMessage(*channel).payload), "last words");
    Status status;
    const Deadline deadline = ChannelSoon();
    while ((status = channel->Send(1, AsBytes("x"))).ok() &&
           std::chrono::steady_clock::now() < deadline) {
      auto received = channel->Receive(After(std::chrono::milliseconds(1)));
      EXPECT_OK(received);
    }
    EXPECT_EQ(status.code(), Code::kAborted) << status;
    EXPECT_OK(channel->Send(2, AsBytes("question")));
    EXPECT_EQ(AsText(NextMessage(*channel).payload), "answer");
    EXPECT_OK(channel->Send(2, AsBytes("end")));
  });
}

template <class Fixture>
void RegisterChannelSuite(const std::string& suite) {
  const std::tuple<const char*, int, ChannelCase> cases[] = {
      {"messages_arrive_whole_and_in_order", 4, ChannelMessagesArriveWholeAndInOrder},
      {"the_largest_message_passes_and_a_larger_one_is_refused", 3,
       ChannelTheLargestMessagePassesAndALargerOneIsRefused},
      {"send_never_waits_and_its_queue_is_bounded", 2, ChannelSendNeverWaitsAndItsQueueIsBounded},
      {"receive_ends_at_the_deadline", 2, ChannelReceiveEndsAtTheDeadline},
      {"wake_ends_this_receive_or_the_next", 2, ChannelWakeEndsThisReceiveOrTheNext},
      {"only_the_stars_edges_exist", 3, ChannelOnlyTheStarsEdgesExist},
      {"ping_pong", 2, ChannelPingPong},
      {"a_dead_peer_is_named_and_the_others_stay_usable", 4,
       ChannelADeadPeerIsNamedAndTheOthersStayUsable},
      {"the_death_of_rank_zero_reaches_every_rank", 3, ChannelTheDeathOfRankZeroReachesEveryRank},
  };
  for (const auto& [name, size, body] : cases) {
    Register(suite, name, [size = size, body = body] { RunChannelCase<Fixture>(size, body); });
  }
  Register(suite, "goodbye_is_not_a_loss", [] { ChannelGoodbyeIsNotALoss<Fixture>(); });
}

#define RABIT_CHANNEL_SUITE(suite, Fixture)                            \
  [[maybe_unused]] static const int rabit_channel_suite_##suite = [] { \
    ::rabit::testing::RegisterChannelSuite<Fixture>(#suite);           \
    return 0;                                                          \
  }()

}  // namespace rabit::testing

#include "transport/shm/shm_channel.h"

#include <utility>
#include <vector>

#include "testing/channel_conformance.h"
#include "testing/inproc_channel.h"
#include "testing/memory_store.h"
#include "transport/shm/control_ring.h"
#include "transport/shm/shm_testing.h"

namespace rabit {
namespace {

using testing::ChannelSoon;
using testing::NextMessage;
using testing::Pattern;

Inbox NewMemory() {
  Result<Inbox> memory = Inbox::Create(ShmChannelShape());
  EXPECT_OK(memory);
  return std::move(memory).value();
}

// The two ends of what a pair shares.
std::pair<ShmChannelPeer, ShmChannelPeer> MakePair(int rank) {
  Inbox to_root = NewMemory();
  Inbox to_rank = NewMemory();
  Result<Inbox> root_maps = Inbox::Map(UniqueFd(::dup(to_rank.fd())), ShmChannelShape());
  Result<Inbox> rank_maps = Inbox::Map(UniqueFd(::dup(to_root.fd())), ShmChannelShape());
  EXPECT_OK(root_maps);
  EXPECT_OK(rank_maps);
  return {ShmChannelPeer{rank, std::move(to_root), std::move(root_maps).value()},
          ShmChannelPeer{0, std::move(to_rank), std::move(rank_maps).value()}};
}

// Every rank whose number `every` divides shares memory with rank 0.
template <int every, int spin_us, bool yields>
class Fixture {
  static constexpr std::chrono::microseconds kSpin{spin_us};

 public:
  explicit Fixture(int size) : hub_(size), shared_(static_cast<size_t>(size)) {
    for (int rank = 1; rank < size; ++rank) {
      if (rank % every != 0) continue;
      auto [root, other] = MakePair(rank);
      shared_[0].push_back(std::move(root));
      shared_[static_cast<size_t>(rank)].push_back(std::move(other));
    }
  }
  std::unique_ptr<Channel> Connect(int rank) {
    return MakeShmChannel(hub_.Connect(rank), std::move(shared_[static_cast<size_t>(rank)]),
                          {.spin = {kSpin, kSpin, yields}});
  }
  void Kill(int rank) { hub_.Kill(rank, "was killed"); }

 private:
  testing::InprocHub hub_;
  std::vector<std::vector<ShmChannelPeer>> shared_;
};

using Spinning = Fixture<1, 50, false>;
using Sleeping = Fixture<1, 0, false>;
using Yielding = Fixture<1, 50, true>;
using Mixed = Fixture<2, 20, false>;
RABIT_CHANNEL_SUITE(ShmChannelSpinning, Spinning);
RABIT_CHANNEL_SUITE(ShmChannelSleeping, Sleeping);
RABIT_CHANNEL_SUITE(ShmChannelYielding, Yielding);
RABIT_CHANNEL_SUITE(ShmChannelMixed, Mixed);

TEST(ControlRing, gives_back_what_was_put_across_its_end) {
  const Inbox memory = NewMemory();
  auto& ring = *reinterpret_cast<ControlRing*>(memory.lane(0, 0).data);

  for (unsigned i = 0; i < 2000; ++i) {
    const std::vector<std::byte> first = Pattern(i % 700, i);
    const std::vector<std::byte> second = Pattern(i * 31 % 900, i + 1);
    ASSERT_TRUE(ring.TryPut(first));
    ASSERT_TRUE(ring.TryPut(second));
    EXPECT_TRUE(ring.Take()->value() == first);
    EXPECT_TRUE(ring.Take()->value() == second);
    EXPECT_FALSE(ring.Take()->has_value());
  }
}

TEST(ControlRing, refuses_what_does_not_fit_and_takes_it_later) {
  const Inbox memory = NewMemory();
  auto& ring = *reinterpret_cast<ControlRing*>(memory.lane(0, 0).data);
  const size_t most = ring.data.size() - sizeof(uint64_t);

  EXPECT_FALSE(ring.TryPut(Pattern(most + 1, 1)));
  EXPECT_TRUE(ring.TryPut(Pattern(most, 1)));
  EXPECT_FALSE(ring.TryPut({}));

  EXPECT_TRUE(ring.Take()->value() == Pattern(most, 1));
  EXPECT_TRUE(ring.TryPut({}));
}

TEST(ControlRing, finds_every_flipped_bit) {
  const std::vector<std::byte> message(40, std::byte{5});
  for (size_t bit = 0; bit < (sizeof(uint64_t) + message.size()) * 8; ++bit) {
    const Inbox memory = *Inbox::Create(ShmChannelShape());
    auto& ring = *reinterpret_cast<ControlRing*>(memory.lane(0, 0).data);
    ASSERT_TRUE(ring.TryPut(message));

    ring.data[bit / 8] ^= std::byte{1} << (bit % 8);

    EXPECT_EQ(ring.Take().status().code(), Code::kInternal) << bit;
  }
}

TEST(ControlRing, believes_no_impossible_length) {
  const Inbox memory = NewMemory();
  auto& ring = *reinterpret_cast<ControlRing*>(memory.lane(0, 0).data);

  ASSERT_TRUE(ring.TryPut(Pattern(8, 1)));
  ring.data[0] = std::byte{9};
  EXPECT_EQ(ring.Take().status().code(), Code::kInternal);
  ring.writer.written.store(ring.data.size() + 8);
  EXPECT_EQ(ring.Take().status().code(), Code::kInternal);
}

// A channel beneath that counts what passes.
class Counting final : public Channel {
 public:
  Counting(std::unique_ptr<Channel> beneath, int& messages, int& bells)
      : beneath_(std::move(beneath)), messages_(messages), bells_(bells) {}
  int rank() const override { return beneath_->rank(); }
  int size() const override { return beneath_->size(); }
  Status Send(int peer, ConstBytes message) override {
    ++(message.empty() ? bells_ : messages_);
    return beneath_->Send(peer, message);
  }
  Result<std::optional<ChannelMessage>> Receive(Deadline deadline) override {
    return beneath_->Receive(deadline);
  }
  void Wake() override { beneath_->Wake(); }

 private:
  const std::unique_ptr<Channel> beneath_;
  int& messages_;
  int& bells_;
};

TEST(ShmChannel, only_what_has_no_room_takes_the_detour) {
  testing::InprocHub hub(2);
  auto [root_end, other_end] = MakePair(1);
  std::vector<ShmChannelPeer> of_root, of_other;
  of_root.push_back(std::move(root_end));
  of_other.push_back(std::move(other_end));
  int messages = 0;
  int bells = 0;
  auto root = MakeShmChannel(std::make_unique<Counting>(hub.Connect(0), messages, bells),
                             std::move(of_root), {});
  auto other = MakeShmChannel(hub.Connect(1), std::move(of_other), {});

  for (unsigned i = 0; i < 40; ++i) EXPECT_OK(root->Send(1, Pattern(1000, i)));
  const int detours = messages;
  EXPECT_GT(detours, 0);
  EXPECT_LT(detours, 40);
  for (unsigned i = 0; i < 40; ++i) {
    EXPECT_TRUE(NextMessage(*other).payload == Pattern(1000, i));
  }
  for (unsigned i = 0; i < 100; ++i) {
    EXPECT_OK(root->Send(1, Pattern(i, i)));
    EXPECT_TRUE(NextMessage(*other).payload == Pattern(i, i));
  }
  EXPECT_EQ(messages, detours);
  EXPECT_EQ(bells, 0);  // nobody slept
}

TEST(ShmChannel, a_rank_that_writes_nonsense_is_lost) {
  testing::InprocHub hub(2);
  auto [root_end, other_end] = MakePair(1);
  std::vector<ShmChannelPeer> of_root;
  of_root.push_back(std::move(root_end));
  auto root = MakeShmChannel(hub.Connect(0), std::move(of_root), {});
  auto& ring = *reinterpret_cast<ControlRing*>(other_end.theirs.lane(0, 0).data);

  ring.writer.written.store(3);

  const Status loss = testing::NextLoss(*root);
  EXPECT_EQ(loss.code(), Code::kPeerLost);
  EXPECT_EQ(loss.culprit(), 1);
  EXPECT_NE(loss.message().find("3 bytes"), std::string::npos) << loss;
}

// Ranks 0, 1 and 3 are on one host, rank 2 on another.
TEST(ShmChannel, connects_the_ranks_of_rank_zeros_host) {
  testing::InprocHub hub(4);
  testing::MemoryStore store;
  testing::RunRanks(4, [&](int rank) {
    testing::NoListener listener;
    const Secret secret{};
    const Topology topology{.host_of = {0, 0, 1, 0}};
    const ConnectContext context{.rank = rank,
                                 .size = 4,
                                 .epoch = 1,
                                 .store = store,
                                 .listener = listener,
                                 .secret = secret,
                                 .topology = topology,
                                 .deadline = ChannelSoon()};
    int messages = 0;
    int bells = 0;
    auto beneath = std::make_unique<Counting>(hub.Connect(rank), messages, bells);
    auto channel = ConnectShmChannel(context, RankTree::Star(context.size), std::move(beneath), {});
    ASSERT_OK(channel);
    if (rank != 0) {
      EXPECT_OK((*channel)->Send(0, Pattern(50, static_cast<unsigned>(rank))));
      EXPECT_TRUE(NextMessage(**channel).payload == Pattern(60, static_cast<unsigned>(rank)));
      EXPECT_EQ(messages, rank == 2 ? 1 : 0);
      return;
    }
    for (int i = 0; i < 3; ++i) {
      const ChannelMessage message = NextMessage(**channel);
      const auto seed = static_cast<unsigned>(message.peer);
      EXPECT_TRUE(message.payload == Pattern(50, seed));
      EXPECT_OK((*channel)->Send(message.peer, Pattern(60, seed)));
    }
    EXPECT_EQ(messages, 1);
  });
}

}  // namespace
}  // namespace rabit

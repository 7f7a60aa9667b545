// Ranks that wait say on which core, so that one that shares it with its peer can give it away.
#include <sched.h>
#include <sys/socket.h>

#include "testing/inproc_channel.h"
#include "testing/memory_store.h"
#include "testing/run_ranks.h"
#include "testing/test.h"
#include "transport/shm/control_ring.h"
#include "transport/shm/shm_channel.h"
#include "transport/shm/shm_stream.h"
#include "transport/shm/shm_testing.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;

// A wait tells its core when it looks at the clock, unless its deadline has passed by then: long
// enough for a machine whose cores are taken.
constexpr auto kLongerThanATimeSlice = 500ms;

// This thread, and those that it starts, on one core for as long as it lives.
class OnOneCore {
 public:
  OnOneCore() {
    EXPECT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
    int core = 0;
    while (!CPU_ISSET(core, &before_)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OnOneCore() { EXPECT_EQ(sched_setaffinity(0, sizeof before_, &before_), 0); }

 private:
  cpu_set_t before_;
};

TEST(SharedCore, a_wait_for_data_tells_the_core) {
  const OnOneCore pinned;
  Inbox mine = std::move(Inbox::Create({.senders = 1, .streams = 1, .ring_bytes = 4096}).value());
  Inbox theirs = std::move(Inbox::Create(mine.shape()).value());
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
  const UniqueFd other_end(sockets[1]);
  const PeerProcess peer(1, getpid(), UniqueFd(sockets[0]));
  ShmStream stream(mine.doorbell(0), {1h, 1h, false});
  const int index = stream.AddPeer(peer, theirs.lane(0, 0), theirs.doorbell(0), mine.lane(0, 0),
                                   {.chunk_bytes = 4096, .single_copy_min_bytes = ~uint64_t{0}});
  std::byte received;
  RecvState recv;
  recv.tag = 1;
  recv.buffer = {&received, 1};

  const Status status = stream.Recv(index, recv).Wait(After(kLongerThanATimeSlice));

  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_TRUE(mine.doorbell(0).waiter.Is(ThisCore()));
}

TEST(SharedCore, a_wait_for_control_messages_tells_the_core) {
  const OnOneCore pinned;
  testing::InprocHub hub(2);
  Inbox mine = std::move(Inbox::Create(ShmChannelShape()).value());
  Inbox theirs = std::move(Inbox::Create(ShmChannelShape()).value());
  const auto& ring = *reinterpret_cast<const ControlRing*>(mine.lane(0, 0).data);
  std::vector<ShmChannelPeer> peers;
  peers.push_back({1, std::move(mine), std::move(theirs)});
  const auto channel = MakeShmChannel(hub.Connect(0), std::move(peers), {.spin = {1h, 1h}});

  const auto received = channel->Receive(After(kLongerThanATimeSlice));

  ASSERT_OK(received);
  EXPECT_FALSE(received->has_value());
  EXPECT_TRUE(ring.reader.waiter.Is(ThisCore()));
}

// Who looks for half an hour before it sleeps gets on with its peer only if one lets the other run.
TEST(SharedCore, ranks_on_one_core_exchange_messages) {
  const OnOneCore pinned;
  testing::MemoryStore store;
  testing::RunRanks(2, [&](int rank) {
    auto transport = testing::ConnectOneHost(store, rank, 2, {.spin_us = 2'000'000'000});
    ASSERT_OK(transport);
    const int peer = 1 - rank;
    for (uint64_t round = 0; round < 500; ++round) {
      const auto sent = static_cast<std::byte>(round + static_cast<uint64_t>(rank));
      std::byte received{};
      Operation receive = (*transport)->Recv(peer, MakeTag(0, round), {&received, 1});
      Operation send = (*transport)->Send(peer, MakeTag(0, round), {&sent, 1});
      ASSERT_OK(receive.Wait(After(60s)));
      ASSERT_OK(send.Wait(After(60s)));
      ASSERT_TRUE(received == static_cast<std::byte>(round + static_cast<uint64_t>(peer)));
    }
  });
}

}  // namespace
}  // namespace rabit

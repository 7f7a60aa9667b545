#include "transport/shm/shm_transport.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <random>
#include <vector>

#include "testing/memory_store.h"
#include "testing/run_ranks.h"
#include "testing/test.h"
#include "testing/transport_conformance.h"
#include "transport/shm/shm_testing.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;
using testing::ConnectOneHost;
using testing::RunRanks;

ShmOptions Staged() { return {.single_copy = SingleCopy::kOff}; }
ShmOptions SingleCopied() {
  return {.single_copy = SingleCopy::kOn, .single_copy_min_bytes = 4096};
}
ShmOptions Checked() { return {.is_checked = true}; }
// Every wait sleeps, every message wraps around the ring.
ShmOptions TinyRing() {
  return {
      .spin_us = 0, .single_copy = SingleCopy::kOff, .ring_bytes = 16 * 1024, .chunk_bytes = 4096};
}

testing::TransportSet MakeThreads(int size, const ShmOptions& options) {
  testing::TransportSet set;
  set.ranks.resize(static_cast<size_t>(size));
  testing::MemoryStore store;
  RunRanks(size, [&](int rank) {
    auto transport = ConnectOneHost(store, rank, size, options);
    EXPECT_OK(transport);
    if (transport.ok()) set.ranks[static_cast<size_t>(rank)] = std::move(transport).value();
  });
  for (const auto& transport : set.ranks) {
    if (transport == nullptr) return {};
  }
  return set;
}

[[maybe_unused]] const int kStaged = testing::RegisterTransportConformance(
    {.suite = "ShmTransportStaged", .make = [](int size) { return MakeThreads(size, Staged()); }});
[[maybe_unused]] const int kChecked = testing::RegisterTransportConformance(
    {.suite = "ShmTransportChecked", .make = [](int size) { return MakeThreads(size, Checked()); }});
[[maybe_unused]] const int kSingleCopy =
    testing::RegisterTransportConformance({.suite = "ShmTransportSingleCopy", .make = [](int size) {
                                             return MakeThreads(size, SingleCopied());
                                           }});

TEST(ShmTransport, probe_accepts_this_host_and_refuses_bad_options) {
  EXPECT_OK(ProbeShm({}));
  EXPECT_EQ(ProbeShm({.ring_bytes = 1000}).code(), Code::kInvalidArgument);
  EXPECT_EQ(ProbeShm({.chunk_bytes = 100}).code(), Code::kInvalidArgument);
  EXPECT_EQ(ProbeShm({.spin_us = -2}).code(), Code::kInvalidArgument);
}

TEST(ShmTransport, a_tiny_ring_carries_long_messages_both_ways) {
  testing::TransportSet set = MakeThreads(2, TinyRing());
  ASSERT_EQ(set.ranks.size(), 2u);
  RunRanks(2, [&](int rank) {
    std::mt19937 random(11);
    for (uint64_t round = 0; round < 50; ++round) {
      const size_t bytes = random() % 100000;
      std::vector<std::byte> mine(bytes, static_cast<std::byte>(round * 2 + rank));
      std::vector<std::byte> theirs(bytes);
      Transport& transport = *set.ranks[rank];
      Operation receive = transport.Recv(1 - rank, MakeTag(0, round), theirs);
      Operation send = transport.Send(1 - rank, MakeTag(0, round), mine);
      EXPECT_OK(send.Wait(After(60s)));
      EXPECT_OK(receive.Wait(After(60s)));
      const auto expected = static_cast<std::byte>(round * 2 + 1 - rank);
      EXPECT_EQ(std::count(theirs.begin(), theirs.end(), expected), static_cast<long>(bytes));
    }
  });
}

TEST(ShmTransport, ranks_that_disagree_about_the_ring_are_refused_by_name) {
  testing::MemoryStore store;
  RunRanks(2, [&](int rank) {
    const ShmOptions options{.ring_bytes = rank == 0 ? 65536u : 131072u};
    const Status status = ConnectOneHost(store, rank, 2, options).status();
    EXPECT_FALSE(status.ok());
    // One of them may see the other leave before it sees its numbers.
    if (status.code() != Code::kPeerLost) {
      EXPECT_EQ(status.code(), Code::kMismatch);
      EXPECT_NE(status.message().find("65536"), std::string::npos) << status;
      EXPECT_NE(status.message().find("131072"), std::string::npos) << status;
    }
  });
}

TEST(ShmTransport, a_peer_that_leaves_is_named_and_its_last_messages_still_arrive) {
  testing::TransportSet set = MakeThreads(2, Staged());
  ASSERT_EQ(set.ranks.size(), 2u);
  std::vector<std::byte> message(1000, std::byte{7});
  EXPECT_OK(set.ranks[1]->Send(0, MakeTag(0, 1), message).Wait(After(10s)));
  std::vector<std::byte> first(1000);
  std::vector<std::byte> second(1000);
  Operation second_receive = set.ranks[0]->Recv(1, MakeTag(0, 2), second);

  set.ranks[1].reset();
  EXPECT_OK(set.ranks[0]->Recv(1, MakeTag(0, 1), first).Wait(After(10s)));
  const Status status = second_receive.Wait(After(60s));

  EXPECT_TRUE(first == message);
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.culprit(), 1);
}

TEST(ShmTransport, the_memory_of_a_host_does_not_grow_with_the_square_of_its_ranks) {
  for (const int ranks : {2, 4, 8, 64, 128}) {
    const uint32_t ring = ShmRingBytes({}, ranks, 3);
    EXPECT_EQ(ring % 4096, 0u);
    const uint64_t all = uint64_t{ring} * static_cast<uint64_t>(ranks * (ranks - 1) * 3);
    EXPECT_LE(all, uint64_t{1} << 30) << ranks;
  }
  EXPECT_EQ(ShmRingBytes({}, 4, 3), 1u << 20);
  EXPECT_EQ(ShmRingBytes({.ring_bytes = 8192}, 64, 3), 8192u);
}

}  // namespace
}  // namespace rabit

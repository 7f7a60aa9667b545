#include "collective/alltoall.h"

#include <cstring>
#include <memory>
#include <vector>

#include "testing/inproc_transport.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

LinkModel Link(double latency_us, double bytes_per_us) {
  LinkModel link;
  link.latency_us = latency_us;
  link.bytes_per_us = bytes_per_us;
  link.is_measured = true;
  return link;
}

TEST(Alltoall, slow_links_get_small_pieces_and_others_whole_parts) {
  EXPECT_EQ(PacingOver(LinkModel()).piece_bytes, 0);  // not measured
  EXPECT_EQ(PacingOver(Link(30, 1250)).piece_bytes, 0);
  EXPECT_EQ(PacingOver(Link(30, 1250)).in_flight, 8);
  const AlltoallPacing slow = PacingOver(Link(50, 25));
  EXPECT_EQ(slow.piece_bytes, 16 << 10);
  EXPECT_EQ(slow.in_flight, 3);
  EXPECT_EQ(PacingOver(Link(1'000, 25)).in_flight, 7);
  EXPECT_EQ(PacingOver(Link(200'000, 125)).in_flight, 1024);  // far away
}

// Byte j of what rank a has for rank b.
std::byte ByteOf(int a, int b, int64_t j) {
  return static_cast<std::byte>(37 * a + 101 * b + j % 251);
}

// Parts of 0 to 5 pieces, with and without a rest, and nothing at all between some ranks.
TEST(Alltoall, parts_of_any_sizes_arrive_in_pieces) {
  constexpr int64_t kPiece = 1000;
  for (const int size : {1, 2, 3, 5}) {
    for (const int64_t in_flight : {1, 3, 8}) {
      const auto bytes_of = [](int a, int b) -> int64_t { return (7 * a + 3 * b) % 6 * 930; };
      testing::InprocFabric fabric(size);
      std::vector<std::unique_ptr<Transport>> transports;
      for (int rank = 0; rank < size; ++rank) transports.push_back(fabric.Connect(rank));

      testing::RunRanks(size, [&](int rank) {
        std::vector<int64_t> sent, received;
        std::vector<std::byte> in, wanted;
        for (int peer = 0; peer < size; ++peer) {
          sent.push_back(bytes_of(rank, peer));
          received.push_back(bytes_of(peer, rank));
          for (int64_t j = 0; j < sent.back(); ++j) in.push_back(ByteOf(rank, peer, j));
          for (int64_t j = 0; j < received.back(); ++j) wanted.push_back(ByteOf(peer, rank, j));
        }
        std::vector<std::byte> out(wanted.size());
        Scratch scratch;
        EXPECT_OK(Alltoall(
            {*transports[static_cast<size_t>(rank)], MakeTag(0, 1), testing::Soon(), scratch}, in,
            sent, out, received, {kPiece, in_flight}));
        EXPECT_TRUE(out == wanted) << "rank " << rank << " of " << size;
      });
    }
  }
}

}  // namespace
}  // namespace rabit

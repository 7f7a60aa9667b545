#include "testing/transport_conformance.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <utility>

#include "testing/own_memory.h"
#include "testing/run_ranks.h"
#include "testing/same_bytes.h"
#include "testing/sanitizer.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit::testing {
namespace {

using namespace std::chrono_literals;
using Buffer = std::vector<std::byte>;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void SendAll(Transport& transport, int peer, Tag tag, const Buffer& buffer) {
  EXPECT_OK(transport.Send(peer, tag, buffer).Wait(Soon()));
}

void ExpectMessage(Transport& transport, int peer, Tag tag, const Buffer& expected) {
  Buffer buffer(expected.size(), std::byte{0xee});
  EXPECT_OK(transport.Recv(peer, tag, buffer).Wait(Soon()));
  EXPECT_TRUE(SameBytes(buffer, expected))
      << "message of" << expected.size() << "bytes from rank" << peer;
}

void NamesRankAndSize(const TransportSet& set) {
  for (size_t rank = 0; rank < set.ranks.size(); ++rank) {
    EXPECT_EQ(set.ranks[rank]->rank(), static_cast<int>(rank));
    EXPECT_EQ(set.ranks[rank]->size(), static_cast<int>(set.ranks.size()));
    EXPECT_FALSE(set.ranks[rank]->name().empty());
    for (size_t peer = 0; peer < set.ranks.size(); ++peer) {
      if (peer == rank) continue;
      EXPECT_FALSE(set.ranks[rank]->name_for(static_cast<int>(peer)).empty());
    }
  }
}

void EverySizeArrivesWhole(const TransportSet& set) {
  const size_t sizes[] = {0,     1,     2,     7,      63,     64,     65,      1023,     4096,
                          65535, 65536, 65537, 262143, 262144, 262145, 1000003, 10u << 20};
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    uint64_t step = 0;
    for (size_t bytes : sizes) {
      const Tag tag = MakeTag(0, 1) + step++;
      const Buffer mine = Pattern(bytes, step * 2 + static_cast<uint64_t>(rank));
      const Buffer expected = Pattern(bytes, step * 2 + static_cast<uint64_t>(1 - rank));
      Buffer theirs(bytes);
      Operation receive = transport.Recv(1 - rank, tag, theirs);
      Operation send = transport.Send(1 - rank, tag, mine);
      EXPECT_OK(receive.Wait(Soon()));
      EXPECT_OK(send.Wait(Soon()));
      EXPECT_TRUE(SameBytes(theirs, expected)) << "at" << bytes << "bytes";
    }
  });
}

void MessagesOfOneTagKeepTheirOrder(const TransportSet& set) {
  constexpr uint64_t kMessages = 300;
  const Tag tag = MakeTag(0, 5);
  const auto size_of = [](uint64_t i) { return static_cast<size_t>((i * 7919) % 5000); };
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    for (uint64_t i = 0; i < kMessages; ++i) {
      const Buffer message = Pattern(size_of(i), i);
      rank == 0 ? SendAll(transport, 1, tag, message) : ExpectMessage(transport, 0, tag, message);
    }
  });
}

// All receives are posted first, so several wait for the same tag at once.
void PostedReceivesAreFilledInOrder(const TransportSet& set) {
  constexpr size_t kMessages = 50;
  const Tag tag = MakeTag(0, 6);
  std::vector<Buffer> received(kMessages, Buffer(100));
  std::vector<Operation> receives;
  for (Buffer& buffer : received) receives.push_back(set.ranks[0]->Recv(1, tag, buffer));
  for (size_t i = 0; i < kMessages; ++i) SendAll(*set.ranks[1], 0, tag, Pattern(100, i));
  for (size_t i = 0; i < kMessages; ++i) {
    EXPECT_OK(receives[i].Wait(Soon()));
    EXPECT_TRUE(SameBytes(received[i], Pattern(100, i))) << "message" << i;
  }
}

void TagsAreReceivedInAnyOrder(const TransportSet& set) {
  constexpr size_t kTags = 64;
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    std::vector<size_t> order(kTags);
    for (size_t i = 0; i < kTags; ++i) order[i] = i;
    std::mt19937 random(7);
    if (rank == 1) std::shuffle(order.begin(), order.end(), random);
    std::vector<Buffer> buffers(kTags);
    std::vector<Operation> operations;
    for (size_t i : order) {
      const size_t bytes = 1 + i * 997 % 70000;
      const Tag tag = MakeTag(0, 9) + i;
      buffers[i] = rank == 0 ? Pattern(bytes, i) : Buffer(bytes);
      operations.push_back(rank == 0 ? transport.Send(1, tag, buffers[i])
                                     : transport.Recv(0, tag, buffers[i]));
    }
    for (Operation& operation : operations) EXPECT_OK(operation.Wait(Soon()));
    if (rank == 0) return;
    for (size_t i = 0; i < kTags; ++i) {
      EXPECT_TRUE(SameBytes(buffers[i], Pattern(buffers[i].size(), i))) << "tag" << i;
    }
  });
}

// A receive that is posted last is waited for first, behind large messages nobody has asked for.
void LargeMessagesOfOtherTagsDoNotBlockAReceive(const TransportSet& set) {
  constexpr size_t kLarge = 6u << 20;
  const Tag tag = MakeTag(0, 10);
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    if (rank == 0) {
      const Buffer first = Pattern(kLarge, 1), second = Pattern(kLarge, 2), third = Pattern(10, 3);
      Operation a = transport.Send(1, tag, first);
      Operation b = transport.Send(1, tag + 1, second);
      Operation c = transport.Send(1, tag + 2, third);
      EXPECT_OK(c.Wait(Soon()));
      EXPECT_OK(b.Wait(Soon()));
      EXPECT_OK(a.Wait(Soon()));
    } else {
      ExpectMessage(transport, 0, tag + 2, Pattern(10, 3));
      ExpectMessage(transport, 0, tag + 1, Pattern(kLarge, 2));
      ExpectMessage(transport, 0, tag, Pattern(kLarge, 1));
    }
  });
}

// Each rank sends before it looks at what the other sent; both wait for their sends only after
// their receives were posted.
void BothDirectionsAtOnceDoNotDeadlock(const TransportSet& set) {
  constexpr size_t kBytes = 5000001;
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    const Buffer mine = Pattern(kBytes, static_cast<uint64_t>(rank));
    for (uint64_t round = 0; round < 4; ++round) {
      Buffer theirs(kBytes);
      Operation send = transport.Send(1 - rank, MakeTag(0, 11) + round, mine);
      Operation receive = transport.Recv(1 - rank, MakeTag(0, 11) + round, theirs);
      EXPECT_OK(send.Wait(Soon()));
      EXPECT_OK(receive.Wait(Soon()));
      EXPECT_TRUE(SameBytes(theirs, Pattern(kBytes, static_cast<uint64_t>(1 - rank))));
    }
  });
}

void SizeMismatchNamesBothSizes(const TransportSet& set) {
  for (const auto& [sent, expected] : {std::pair<size_t, size_t>{1000, 24},
                                       {24, 1000},
                                       {0, 8},
                                       {8, 0},
                                       {1u << 20, 4096},
                                       {4096, 1u << 20}}) {
    const Tag tag = MakeTag(0, 20) + sent % 997;
    RunRanks(2, [&, sent = sent, expected = expected](int rank) {
      Transport& transport = *set.ranks[static_cast<size_t>(rank)];
      if (rank == 0) {
        const Buffer message = Pattern(sent, 1);
        (void)transport.Send(1, tag, message).Wait(Soon());
        SendAll(transport, 1, tag, Pattern(99, 2));
        return;
      }
      Buffer buffer(expected, std::byte{0x55});
      const Status status = transport.Recv(0, tag, buffer).Wait(Soon());
      EXPECT_EQ(status.code(), Code::kMismatch);
      EXPECT_TRUE(Contains(status.message(), std::to_string(sent))) << status.message();
      EXPECT_TRUE(Contains(status.message(), std::to_string(expected))) << status.message();
      ExpectMessage(transport, 0, tag, Pattern(99, 2));
    });
  }
}

// Stream 1 carries messages that nobody receives until stream 0 has finished a long exchange.
void StreamsDoNotBlockEachOther(const TransportSet& set) {
  constexpr size_t kStuck = 8u << 20;
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    const Buffer stuck = Pattern(kStuck, 77);
    std::deque<Operation> blocked;
    if (rank == 0) {
      for (uint64_t i = 0; i < 3; ++i)
        blocked.push_back(transport.Send(1, MakeTag(1, 1) + i, stuck));
    }
    for (uint64_t i = 0; i < 200; ++i) {
      const Tag tag = MakeTag(0, 30) + i;
      if (rank == 0) SendAll(transport, 1, tag, Pattern(3000, i));
      ExpectMessage(transport, 1 - rank, tag, Pattern(3000, i));
      if (rank == 1) SendAll(transport, 0, tag, Pattern(3000, i));
      if (CurrentTestFailed()) break;
    }
    if (rank == 1) {
      for (uint64_t i = 0; i < 3; ++i) ExpectMessage(transport, 0, MakeTag(1, 1) + i, stuck);
    }
    for (Operation& send : blocked) EXPECT_OK(send.Wait(Soon()));
  });
}

void LanesRunAtOnce(const TransportSet& set) {
  constexpr int kStreams = 4;
  RunRanks(2 * kStreams, [&](int worker) {
    const int rank = worker % 2;
    const int stream = worker / 2;
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    std::mt19937 random(static_cast<unsigned>(stream));
    for (uint64_t i = 0; i < (kIsThreadSanitized ? 15 : 60); ++i) {
      const size_t bytes = random() % 200000;
      const uint64_t seed = i * 8 + static_cast<uint64_t>(stream * 2);
      const Buffer mine = Pattern(bytes, seed + static_cast<uint64_t>(rank));
      Buffer theirs(bytes);
      Operation receive = transport.Recv(1 - rank, MakeTag(stream, i), theirs);
      Operation send = transport.Send(1 - rank, MakeTag(stream, i), mine);
      EXPECT_OK(receive.Wait(Soon()));
      EXPECT_OK(send.Wait(Soon()));
      EXPECT_TRUE(SameBytes(theirs, Pattern(bytes, seed + static_cast<uint64_t>(1 - rank))));
    }
  });
}

void CancelledReceiveLeavesItsBufferAlone(const TransportSet& set) {
  const Tag tag = MakeTag(0, 40);
  {
    auto doomed = std::make_unique<Buffer>(100000);
    {
      Operation receive = set.ranks[0]->Recv(1, tag, *doomed);
    }
    doomed.reset();  // a late write is found by the address sanitizer
  }
  const Buffer message = Pattern(100000, 3);
  Operation send = set.ranks[1]->Send(0, tag, message);
  ExpectMessage(*set.ranks[0], 1, tag, message);
  EXPECT_OK(send.Wait(Soon()));
}

// Receives are destroyed while their data streams in; whatever was cancelled, memory stays sound
// and other tags go on.
void CancelWhileDataArrives(const TransportSet& set) {
  constexpr uint64_t kRounds = 40;
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    std::mt19937 random(5);
    for (uint64_t i = 0; i < kRounds; ++i) {
      const Tag tag = MakeTag(0, 50 + i);
      const auto pause = std::chrono::microseconds(random() % 400);
      if (rank == 0) {
        auto message = std::make_unique<Buffer>(700000);
        {
          Operation send = transport.Send(1, tag, *message);
          (void)send.Wait(After(pause));
        }
        message.reset();
      } else {
        auto buffer = std::make_unique<Buffer>(700000);
        {
          Operation receive = transport.Recv(0, tag, *buffer);
          (void)receive.Wait(After(pause));
        }
        buffer.reset();
      }
      const Tag after = MakeTag(0, 100 + i);
      if (rank == 0) SendAll(transport, 1, after, Pattern(500, i));
      if (rank == 1) ExpectMessage(transport, 0, after, Pattern(500, i));
    }
  });
}

void TimeoutLeavesTheOperationInFlight(const TransportSet& set) {
  const Tag tag = MakeTag(0, 60);
  const Buffer message = Pattern(300000, 4);
  Buffer buffer(message.size());
  Operation receive = set.ranks[0]->Recv(1, tag, buffer);
  const Status status = receive.Wait(After(5ms));
  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_TRUE(Contains(status.message(), "rank 1")) << status.message();
  EXPECT_EQ(receive.Wait(After(-1s)).code(), Code::kTimedOut);

  Operation send = set.ranks[1]->Send(0, tag, message);
  EXPECT_OK(receive.Wait(Soon()));
  EXPECT_OK(send.Wait(Soon()));
  EXPECT_TRUE(buffer == message);
}

void AbortWakesEveryWaiterWithTheFirstReason(const TransportSet& set) {
  Transport& transport = *set.ranks[0];
  constexpr int kWaiters = 6;
  std::atomic<int> posted{0};
  RunRanks(kWaiters + 1, [&](int worker) {
    if (worker == kWaiters) {
      while (posted.load() < kWaiters) std::this_thread::yield();
      transport.Abort(PeerLost(2, "rank 2 was killed by signal 9"));
      transport.Abort(Internal("a later reason"));
      return;
    }
    Buffer buffer(1000 + static_cast<size_t>(worker));
    Operation receive =
        transport.Recv(1 + worker % 2, MakeTag(worker % 3, static_cast<uint64_t>(worker)), buffer);
    posted.fetch_add(1);
    const Status status = receive.Wait(Soon());
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_EQ(status.culprit(), 2);
    EXPECT_TRUE(Contains(status.message(), "killed by signal 9")) << status.message();
  });
  Buffer buffer(10);
  EXPECT_EQ(transport.Recv(1, MakeTag(0, 99), buffer).Wait(Soon()).code(), Code::kPeerLost);
  EXPECT_EQ(transport.Send(1, MakeTag(0, 99), buffer).Wait(Soon()).code(), Code::kPeerLost);
}

// A large send whose peer never receives: Abort must end it and release the buffer.
void AbortEndsASendThatNobodyReceives(const TransportSet& set) {
  auto message = std::make_unique<Buffer>(32u << 20);
  Operation send = set.ranks[0]->Send(1, MakeTag(0, 70), *message);
  std::thread aborter([&] { set.ranks[0]->Abort(Aborted("stopped by the user")); });
  const Status status = send.Wait(Soon());
  aborter.join();
  EXPECT_TRUE(status.ok() || status.code() == Code::kAborted) << status;
  message.reset();
}

void CountersCountPayload(const TransportSet& set) {
  const size_t sizes[] = {0, 10, 100000};
  RunRanks(2, [&](int rank) {
    for (size_t bytes : sizes) {
      const Tag tag = MakeTag(1, bytes);
      if (rank == 0) SendAll(*set.ranks[0], 1, tag, Pattern(bytes, 1));
      if (rank == 1) ExpectMessage(*set.ranks[1], 0, tag, Pattern(bytes, 1));
    }
  });
  const TransportCounters sender = set.ranks[0]->counters();
  const TransportCounters receiver = set.ranks[1]->counters();
  EXPECT_EQ(sender.messages_sent, 3u);
  EXPECT_EQ(sender.bytes_sent, 100010u);
  EXPECT_EQ(sender.messages_received, 0u);
  EXPECT_EQ(receiver.messages_received, 3u);
  EXPECT_EQ(receiver.bytes_received, 100010u);
  EXPECT_EQ(receiver.bytes_sent, 0u);
  EXPECT_EQ(receiver.frames_corrupt, 0u);
  EXPECT_EQ(sender.frames_resent, 0u);
}

void PeersThatDoNotExistAreRefused(const TransportSet& set) {
  Buffer buffer(8);
  for (int peer : {-1, 0, 3, 1000}) {
    const Status sent = set.ranks[0]->Send(peer, MakeTag(0, 1), buffer).Wait(Soon());
    EXPECT_EQ(sent.code(), Code::kInvalidArgument) << "peer" << peer;
    EXPECT_TRUE(Contains(sent.message(), std::to_string(peer))) << sent.message();
    EXPECT_EQ(set.ranks[0]->SendAnswered(peer, MakeTag(0, 1), buffer).Wait(Soon()).code(),
              Code::kInvalidArgument);
    EXPECT_EQ(set.ranks[0]->Recv(peer, MakeTag(0, 1), buffer).Wait(Soon()).code(),
              Code::kInvalidArgument);
  }
}

// Every rank exchanges with every other at once, as an alltoall does.
void EveryPairExchanges(const TransportSet& set) {
  const int size = static_cast<int>(set.ranks.size());
  RunRanks(size, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    const auto seed = [&](int from, int to) { return static_cast<uint64_t>(from * size + to); };
    std::vector<Buffer> in(static_cast<size_t>(size)), out(static_cast<size_t>(size));
    std::vector<Operation> operations;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      Buffer& buffer = in[static_cast<size_t>(peer)];
      buffer.resize(90001);
      operations.push_back(transport.Recv(peer, MakeTag(2, 3), buffer));
    }
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      Buffer& buffer = out[static_cast<size_t>(peer)];
      buffer = Pattern(90001, seed(rank, peer));
      operations.push_back(transport.Send(peer, MakeTag(2, 3), buffer));
    }
    for (Operation& operation : operations) EXPECT_OK(operation.Wait(Soon()));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      EXPECT_TRUE(SameBytes(in[static_cast<size_t>(peer)], Pattern(90001, seed(peer, rank))));
    }
  });
}

// Every byte is combined once, whatever the pieces are, also when the message came before its
// receive.
// Each byte to that of its place, eight at a time: a sanitizer makes every access many.
void AddBytes(Bytes target, ConstBytes piece) {
  constexpr uint64_t kTops = 0x8080'8080'8080'8080;
  for (size_t at = 0; at < target.size(); at += sizeof(uint64_t)) {
    const size_t bytes = std::min(sizeof(uint64_t), target.size() - at);
    uint64_t a = 0, b = 0;
    std::memcpy(&a, target.data() + at, bytes);
    std::memcpy(&b, piece.data() + at, bytes);
    a = ((a & ~kTops) + (b & ~kTops)) ^ ((a ^ b) & kTops);  // no carry leaves a byte
    std::memcpy(target.data() + at, &a, bytes);
  }
}

void RecvReduceCombinesEveryByteOnce(const TransportSet& set) {
  const PieceReducer add{[](const void*, Bytes target, ConstBytes piece) {
    EXPECT_EQ(target.size(), piece.size());
    AddBytes(target, piece);
  }};
  const size_t sizes[] = {0, 1, 24, 1000, 65537, 300000, 3000001};
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    uint64_t step = 0;
    for (size_t bytes : sizes) {
      const Tag tag = MakeTag(0, 80) + ++step;
      const Buffer mine = Pattern(bytes, step * 2 + static_cast<uint64_t>(rank));
      const Buffer theirs = Pattern(bytes, step * 2 + static_cast<uint64_t>(1 - rank));
      Buffer sum = mine, scratch(bytes), expected = mine;
      add.run(nullptr, expected, theirs);
      Operation send = transport.Send(1 - rank, tag, mine);
      Operation receive = transport.RecvReduce(1 - rank, tag, sum, scratch, add);
      EXPECT_OK(receive.Wait(Soon()));
      EXPECT_OK(send.Wait(Soon()));
      EXPECT_TRUE(SameBytes(sum, expected)) << "at" << bytes << "bytes";
    }
  });
}

// Both ranks at once, as in an exchange of halves: each sends back, changed, what it got, into the
// memory that it came from.
void AnsweredSendsEndWithTheirAnswer(const TransportSet& set) {
  const auto changed = [](Buffer bytes) {
    for (std::byte& each : bytes) each ^= std::byte{1};
    return bytes;
  };
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    const int peer = 1 - rank;
    Tag tag = MakeTag(0, 1);
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{65536}, size_t{65537}, size_t{3} << 20}) {
      const auto at = static_cast<uint64_t>(bytes);
      Buffer mine = Pattern(bytes, at + static_cast<uint64_t>(rank));
      Buffer theirs(bytes);
      Operation arrives = transport.Recv(peer, tag, theirs);
      Operation sent = transport.SendAnswered(peer, tag, mine);
      EXPECT_OK(arrives.Wait(Soon()));
      EXPECT_TRUE(SameBytes(theirs, Pattern(bytes, at + static_cast<uint64_t>(peer))));
      theirs = changed(std::move(theirs));
      Operation comes_back = transport.Recv(peer, tag + 1, mine);
      Operation answered = transport.Send(peer, tag + 1, theirs);
      EXPECT_OK(comes_back.Wait(Soon()));
      EXPECT_OK(sent.Wait(Soon()));
      EXPECT_OK(answered.Wait(Soon()));
      EXPECT_TRUE(SameBytes(mine, changed(Pattern(bytes, at + static_cast<uint64_t>(rank)))));
      tag += 2;
    }
  });
}

void SendsWhoseAnswerDoesNotComeEndToo(const TransportSet& set) {
  const Buffer message = Pattern(size_t{3} << 20, 1);
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    if (rank == 1) return ExpectMessage(transport, 0, MakeTag(0, 1), message);
    EXPECT_OK(transport.SendAnswered(1, MakeTag(0, 1), message).Wait(Soon()));
  });
}

struct ConformanceCase {
  const char* name;
  int size;
  void (*run)(const TransportSet& set);
};

constexpr ConformanceCase kCases[] = {
    {"names_rank_and_size", 3, NamesRankAndSize},
    {"every_size_arrives_whole", 2, EverySizeArrivesWhole},
    {"messages_of_one_tag_keep_their_order", 2, MessagesOfOneTagKeepTheirOrder},
    {"posted_receives_are_filled_in_order", 2, PostedReceivesAreFilledInOrder},
    {"tags_are_received_in_any_order", 2, TagsAreReceivedInAnyOrder},
    {"large_messages_of_other_tags_do_not_block_a_receive", 2,
     LargeMessagesOfOtherTagsDoNotBlockAReceive},
    {"both_directions_at_once_do_not_deadlock", 2, BothDirectionsAtOnceDoNotDeadlock},
    {"size_mismatch_names_both_sizes", 2, SizeMismatchNamesBothSizes},
    {"streams_do_not_block_each_other", 2, StreamsDoNotBlockEachOther},
    {"lanes_run_at_once", 2, LanesRunAtOnce},
    {"cancelled_receive_leaves_its_buffer_alone", 2, CancelledReceiveLeavesItsBufferAlone},
    {"cancel_while_data_arrives", 2, CancelWhileDataArrives},
    {"timeout_leaves_the_operation_in_flight", 2, TimeoutLeavesTheOperationInFlight},
    {"abort_wakes_every_waiter_with_the_first_reason", 3, AbortWakesEveryWaiterWithTheFirstReason},
    {"abort_ends_a_send_that_nobody_receives", 2, AbortEndsASendThatNobodyReceives},
    {"counters_count_payload", 2, CountersCountPayload},
    {"peers_that_do_not_exist_are_refused", 3, PeersThatDoNotExistAreRefused},
    {"every_pair_exchanges", 4, EveryPairExchanges},
    {"recv_reduce_combines_every_byte_once", 2, RecvReduceCombinesEveryByteOnce},
    {"answered_sends_end_with_their_answer", 2, AnsweredSendsEndWithTheirAnswer},
    {"sends_whose_answer_does_not_come_end_too", 2, SendsWhoseAnswerDoesNotComeEndToo},
};

}  // namespace

int RegisterTransportConformance(TransportFactory factory) {
  for (const ConformanceCase& test : kCases) {
    Register(factory.suite, test.name, [make = factory.make, test] {
      const TransportSet set = make(test.size);
      if (static_cast<int>(set.ranks.size()) != test.size) {
        ADD_FAILURE() << "the factory made" << set.ranks.size() << "of" << test.size << "ranks";
        return;
      }
      test.run(set);
    });
  }
  return 0;
}

}  // namespace rabit::testing

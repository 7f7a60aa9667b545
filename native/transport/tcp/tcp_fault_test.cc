// The TCP transport over connections that break and bytes that change.
#include <array>
#include <atomic>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "base/socket.h"
#include "base/wire.h"
#include "testing/bad_wire.h"
#include "testing/mortal_listener.h"
#include "testing/same_bytes.h"
#include "testing/soon.h"
#include "testing/tcp_job.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;
using testing::BadWire;
using testing::MakeTcp;
using testing::RunRanks;
using testing::SameBytes;
using testing::Soon;
using testing::TcpJob;
using testing::TransportSet;

using Buffer = std::vector<std::byte>;

// The same bytes for the same seed.
Buffer RandomBytes(size_t bytes, unsigned seed) {
  std::mt19937_64 random(seed);
  Buffer buffer(bytes + sizeof(uint64_t));
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    StoreLittle<uint64_t>(buffer.data() + i, random());
  }
  buffer.resize(bytes);
  return buffer;
}

// Hits numbered frames with the given chances, in thousandths.
FrameTap RandomFaults(unsigned seed, unsigned payload, unsigned header, unsigned drop) {
  struct State {
    std::mutex mutex;
    std::mt19937 random;
  };
  auto state = std::make_shared<State>();
  state->random.seed(seed);
  return [=](int, const FrameHeader& frame) {
    if (frame.type != FrameType::kData) return FrameFault::kNone;
    std::lock_guard lock(state->mutex);
    const unsigned roll = state->random() % 1000;
    if (roll < payload) return FrameFault::kFlipPayloadBit;
    if (roll < payload + header) return FrameFault::kFlipHeaderBit;
    if (roll < payload + header + drop) return FrameFault::kDropConnection;
    return FrameFault::kNone;
  };
}

// Both ranks send messages of all sizes at once; every byte must be right and none twice.
void ExchangeUnder(const std::function<TcpOptions(int rank)>& options_of,
                   TransportCounters counters[2]) {
  TransportSet set = MakeTcp(2, options_of);
  ASSERT_EQ(set.ranks.size(), size_t{2});
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    std::mt19937 sizes(3);
    for (unsigned i = 0; i < 60; ++i) {
      const size_t bytes = i % 4 == 0 ? sizes() % 3000000 : sizes() % 3000;
      const Buffer mine = RandomBytes(bytes, i * 2 + static_cast<unsigned>(rank));
      Buffer theirs(bytes);
      const Tag tag = MakeTag(static_cast<int>(i % 2), 1);
      Operation receive = transport.Recv(1 - rank, tag, theirs);
      Operation send = transport.Send(1 - rank, tag, mine);
      EXPECT_OK(receive.Wait(Soon()));
      EXPECT_OK(send.Wait(Soon()));
      EXPECT_TRUE(SameBytes(theirs, RandomBytes(bytes, i * 2 + 1 - static_cast<unsigned>(rank))))
          << "message" << i;
      if (testing::CurrentTestFailed()) return;
    }
  });
  for (size_t rank = 0; rank < 2; ++rank) counters[rank] = set.ranks[rank]->counters();
}

TEST(TcpFaults, flipped_bits_in_one_frame_of_fifty_are_found_and_sent_again) {
  TransportCounters counters[2];
  ExchangeUnder(
      [](int rank) {
        TcpOptions options;
        options.payload_checks = PayloadChecks::kOn;
        options.frame_attempts_max = 5;  // three in a row happen once in a thousand runs
        options.progress_timeout = std::chrono::minutes(1);  // a busy machine may read nothing for 3 s
        options.tap = RandomFaults(static_cast<unsigned>(rank) + 1, 20, 0, 0);
        return options;
      },
      counters);
  EXPECT_GT(counters[0].frames_corrupt, 0u);
  EXPECT_GT(counters[1].frames_resent, 0u);
  EXPECT_EQ(counters[0].connections_restored, 0u);
  EXPECT_EQ(counters[0].messages_received, 60u);
}

TEST(TcpFaults, connections_that_break_at_random_lose_and_double_nothing) {
  TransportCounters counters[2];
  ExchangeUnder(
      [](int rank) {
        TcpOptions options;
        options.connections_without_progress_max = 30;
        options.tap = RandomFaults(static_cast<unsigned>(rank) + 5, 0, 0, 30);
        return options;
      },
      counters);
  EXPECT_GT(counters[0].connections_restored, 0u);
  EXPECT_GT(counters[0].frames_resent + counters[1].frames_resent, 0u);
  EXPECT_EQ(counters[0].frames_corrupt, 0u);
  EXPECT_EQ(counters[0].messages_received, 60u);
  EXPECT_EQ(counters[1].messages_sent, 60u);
}

TEST(TcpFaults, every_kind_of_fault_at_once_on_striped_links) {
  TransportCounters counters[2];
  ExchangeUnder(
      [](int rank) {
        TcpOptions options;
        options.connections_per_stream = 2;
        options.stripe_bytes_min = 100000;
        options.payload_checks = PayloadChecks::kOn;
        options.frame_attempts_max = 5;
        options.connections_without_progress_max = 30;
        options.tap = RandomFaults(static_cast<unsigned>(rank) + 9, 10, 10, 10);
        return options;
      },
      counters);
  EXPECT_GT(counters[0].connections_restored, 0u);
  EXPECT_GT(counters[0].frames_corrupt, 0u);
}

// What was sent and answered is not acknowledged for a time in which its memory changes.
TEST(TcpFaults, memory_that_an_answer_overwrote_is_never_taken_for_the_message) {
  TransportSet set = MakeTcp(2, [](int rank) {
    TcpOptions options;
    options.payload_checks = PayloadChecks::kOn;
    options.frame_attempts_max = 5;
    options.connections_without_progress_max = 30;
    options.tap = RandomFaults(static_cast<unsigned>(rank) + 13, 30, 0, 60);
    return options;
  });
  ASSERT_EQ(set.ranks.size(), size_t{2});
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    const int peer = 1 - rank;
    const Tag tag = MakeTag(0, 1);
    const auto message = [](unsigned i, int from) {
      return RandomBytes(70000 + i * 7001, i * 2 + static_cast<unsigned>(from));
    };
    const auto answer = [](unsigned i, int from) {
      return RandomBytes(70000 + i * 7001, 1000 + i * 2 + static_cast<unsigned>(from));
    };
    for (unsigned i = 0; i < 60 && !testing::CurrentTestFailed(); ++i) {
      Buffer mine = message(i, rank);
      Buffer theirs(mine.size());
      Operation arrives = transport.Recv(peer, tag, theirs);
      Operation sent = transport.SendAnswered(peer, tag, mine);
      EXPECT_OK(arrives.Wait(Soon()));
      EXPECT_TRUE(SameBytes(theirs, message(i, peer))) << "message" << i;
      theirs = answer(i, rank);
      Operation answered = transport.Recv(peer, tag, mine);
      Operation answers = transport.Send(peer, tag, theirs);
      EXPECT_OK(answered.Wait(Soon()));
      EXPECT_OK(sent.Wait(Soon()));
      EXPECT_OK(answers.Wait(Soon()));
      EXPECT_TRUE(SameBytes(mine, answer(i, peer))) << "answer" << i;
    }
  });
  EXPECT_GT(set.ranks[0]->counters().connections_restored, 0u);
  EXPECT_GT(set.ranks[0]->counters().frames_corrupt, 0u);
}

// Two ranks, of which rank 1 reaches rank 0 through a wire that does harm.
struct BadlyWiredJob {
  // `has_other_way`: rank 0 has a second interface, which rank 1 reaches unharmed.
  BadlyWiredJob(BadWire::Harm harm, const TcpOptions& options, bool has_other_way = false)
      : job(2), wire(job.listeners[0]->address(), std::move(harm)) {
    const std::string other_way = has_other_way ? "," + job.listeners[0]->address() : "";
    EXPECT_OK(job.store.Set("1/address/0", wire.address() + other_way));
    RunRanks(2, [&](int rank) {
      ConnectContext context = job.Context(rank);
      context.streams = 1;
      auto transport = ConnectTcpTransport(context, options);
      ASSERT_OK(transport);
      ranks[static_cast<size_t>(rank)] = std::move(*transport);
    });
  }
  // Messages of all sizes both ways; every byte must be right.
  void Exchange(unsigned messages, const std::function<size_t(unsigned)>& size_of) {
    ASSERT_TRUE(ranks[0] != nullptr && ranks[1] != nullptr);
    RunRanks(2, [&](int rank) {
      Transport& transport = *ranks[static_cast<size_t>(rank)];
      for (unsigned i = 0; i < messages; ++i) {
        const Buffer mine = RandomBytes(size_of(i), i * 2 + static_cast<unsigned>(rank));
        Buffer theirs(mine.size());
        Operation receive = transport.Recv(1 - rank, MakeTag(0, 1), theirs);
        EXPECT_OK(transport.Send(1 - rank, MakeTag(0, 1), mine).Wait(Soon()));
        EXPECT_OK(receive.Wait(Soon()));
        EXPECT_TRUE(
            SameBytes(theirs, RandomBytes(theirs.size(), i * 2 + 1 - static_cast<unsigned>(rank))))
            << "message" << i << "on rank" << rank;
        if (testing::CurrentTestFailed()) return;
      }
    });
  }

  TcpJob job;
  BadWire wire;
  std::array<std::unique_ptr<Transport>, 2> ranks;
};

TcpOptions CheckedOptions(std::chrono::milliseconds progress_timeout = 10s) {
  TcpOptions options;
  options.payload_checks = PayloadChecks::kOn;
  options.progress_timeout = progress_timeout;
  return options;
}

TEST(TcpFaults, bits_flipped_anywhere_on_the_wire_are_healed) {
  testing::BitFlipper flipper(23);
  std::atomic<int> flips{0};
  BadlyWiredJob job(
      [&](const BadWire::Piece& piece) {
        if (testing::IsBehindHandshake(piece.is_answer, piece.offset) && flipper.Hit(piece.bytes)) {
          ++flips;
        }
        return BadWire::Fate::kPass;
      },
      CheckedOptions());
  job.Exchange(1500, [](unsigned i) { return i % 100 == 0 ? 20000u : i * 7 % 900; });
  EXPECT_GT(flips.load(), 50);
}

TEST(TcpFaults, a_connection_that_swallows_everything_is_replaced) {
  for (const bool is_answer : {false, true}) {
    const auto start = std::chrono::steady_clock::now();
    BadlyWiredJob job(
        [&](const BadWire::Piece& piece) {
          const bool is_hit =
              piece.connection == 0 && piece.is_answer == is_answer && piece.offset > 5000;
          return is_hit ? BadWire::Fate::kSwallow : BadWire::Fate::kPass;
        },
        CheckedOptions(300ms));
    job.Exchange(20, [](unsigned i) { return size_t{i * 1000}; });
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
    ASSERT_TRUE(job.ranks[0] != nullptr);
    // A busy machine may hold up the next one for as long, which is replaced as well.
    EXPECT_GE(job.ranks[0]->counters().connections_restored, 1u);
  }
}

TEST(TcpFaults, a_byte_that_vanishes_inside_a_frame_is_sent_again) {
  std::set<int> hit;
  BadlyWiredJob job(
      [&](const BadWire::Piece& piece) {
        const bool is_hit =
            piece.connection < 2 && piece.offset > 5000 && hit.insert(piece.connection).second;
        return is_hit ? BadWire::Fate::kSwallowOneByte : BadWire::Fate::kPass;
      },
      CheckedOptions(300ms));
  job.Exchange(30, [](unsigned i) { return size_t{i * 1000}; });
  EXPECT_EQ(hit.size(), size_t{2});
}

// Nothing passes any more on any connection: the peer is named, and in time.
TEST(TcpFaults, a_wire_that_stays_dead_names_the_peer_on_both_sides) {
  std::atomic<bool> is_dead{false};
  TcpOptions options = CheckedOptions(300ms);
  options.reconnect_window = 300ms;
  BadlyWiredJob job(
      [&](const BadWire::Piece&) {
        return is_dead.load() ? BadWire::Fate::kSwallow : BadWire::Fate::kPass;
      },
      options);
  job.Exchange(3, [](unsigned) { return size_t{1000}; });
  is_dead.store(true);
  RunRanks(2, [&](int rank) {
    Transport& transport = *job.ranks[static_cast<size_t>(rank)];
    const Buffer mine = RandomBytes(1000000, 1);
    Buffer theirs(mine.size());
    Operation receive = transport.Recv(1 - rank, MakeTag(0, 1), theirs);
    Operation send = transport.Send(1 - rank, MakeTag(0, 1), mine);
    const Status status = receive.Wait(Soon());
    EXPECT_EQ(status.code(), Code::kPeerLost) << status;
    EXPECT_EQ(status.culprit(), 1 - rank) << status;
    EXPECT_FALSE(send.Wait(Soon()).ok());
  });
}

TEST(TcpFaults, what_a_dead_interface_carried_goes_over_the_other_one) {
  std::atomic<bool> is_dead{false};
  BadlyWiredJob job(
      [&](const BadWire::Piece&) {
        return is_dead.load() ? BadWire::Fate::kSwallow : BadWire::Fate::kPass;
      },
      CheckedOptions(300ms), true);
  job.Exchange(3, [](unsigned) { return size_t{1000}; });
  is_dead.store(true);
  job.Exchange(3, [](unsigned) { return size_t{1000000}; });
  EXPECT_GE(job.ranks[0]->counters().connections_restored, 1u);
}

TEST(TcpFaults, a_process_that_has_ended_is_found_although_one_of_its_interfaces_is_dead) {
  for (const int ended : {0, 1}) {
    const int survivor = 1 - ended;
    TcpJob job(2, "127.0.0.2:0");
    // On another host than the survivor, where one refusal would be enough.
    auto elsewhere = Listener::Open("127.0.0.3:0", job.secret, 1, survivor);
    ASSERT_OK(elsewhere);
    job.listeners[static_cast<size_t>(survivor)] = std::move(*elsewhere);
    auto& listener = job.listeners[static_cast<size_t>(ended)];
    auto mortal = std::make_unique<testing::MortalListener>(std::move(listener));
    testing::MortalListener& process = *mortal;
    listener = std::move(mortal);
    std::atomic<bool> is_dead{false};
    BadWire interface(process.address(), [&](const BadWire::Piece&) {
      return is_dead.load() ? BadWire::Fate::kSwallow : BadWire::Fate::kPass;
    });
    for (const int rank : {0, 1}) {
      const std::string address = job.listeners[static_cast<size_t>(rank)]->address();
      EXPECT_OK(job.store.Set("1/address/" + std::to_string(rank),
                              rank == ended ? interface.address() + "," + address : address));
    }
    std::array<std::unique_ptr<Transport>, 2> ranks;
    RunRanks(2, [&](int rank) {
      ConnectContext context = job.Context(rank);
      context.streams = 1;
      TcpOptions options;
      options.reconnect_window = 10s;
      auto transport = ConnectTcpTransport(context, options);
      ASSERT_OK(transport);
      ranks[static_cast<size_t>(rank)] = std::move(*transport);
    });
    ASSERT_TRUE(ranks[0] != nullptr && ranks[1] != nullptr);
    Buffer buffer(8);
    Operation receive = ranks[static_cast<size_t>(survivor)]->Recv(ended, MakeTag(0, 1), buffer);

    is_dead.store(true);
    process.Die();
    ranks[static_cast<size_t>(ended)]->Abort(Aborted("dies without goodbye"));

    const Status status = receive.Wait(Soon());
    EXPECT_EQ(status.code(), Code::kPeerLost) << status;
    EXPECT_EQ(status.culprit(), ended) << status;
    EXPECT_NE(status.message().find("its port refuses connections"), std::string::npos) << status;
  }
}

// A peer that computes for long leaves a large message in its socket: that is no stall for good.
// The higher rank dials, but it looks away: nobody there wants the message whose header has come.
TEST(TcpFaults, a_break_that_only_the_lower_rank_sees_is_healed_while_the_higher_one_pauses) {
  std::atomic<bool> is_cut{false};
  BadlyWiredJob job(
      [&](const BadWire::Piece& piece) {
        const bool is_amid = piece.connection == 0 && piece.is_answer && piece.offset > 100'000;
        return is_amid && !is_cut.exchange(true) ? BadWire::Fate::kResetTarget
                                                 : BadWire::Fate::kPass;
      },
      CheckedOptions());
  ASSERT_TRUE(job.ranks[0] != nullptr && job.ranks[1] != nullptr);
  const Buffer message = RandomBytes(4 << 20, 5);
  Buffer received(message.size());
  const auto start = std::chrono::steady_clock::now();

  Operation send = job.ranks[0]->Send(1, MakeTag(0, 1), message);
  const Deadline end = Soon();
  while (job.ranks[1]->counters().connections_restored == 0 &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }

  EXPECT_EQ(job.ranks[1]->counters().connections_restored, 1u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, TcpOptions().reconnect_window);
  EXPECT_OK(job.ranks[1]->Recv(0, MakeTag(0, 1), received).Wait(Soon()));
  EXPECT_OK(send.Wait(Soon()));
  EXPECT_TRUE(SameBytes(received, message));
}

TEST(TcpFaults, a_peer_that_takes_a_message_late_gets_it_whole) {
  BadlyWiredJob job([](const BadWire::Piece&) { return BadWire::Fate::kPass; },
                    CheckedOptions(50ms));
  ASSERT_TRUE(job.ranks[0] != nullptr && job.ranks[1] != nullptr);
  const Buffer mine = RandomBytes(8000000, 5);
  Operation send = job.ranks[0]->Send(1, MakeTag(0, 1), mine);
  EXPECT_EQ(send.Wait(After(500ms)).code(), Code::kTimedOut);
  Buffer theirs(mine.size());
  EXPECT_OK(job.ranks[1]->Recv(0, MakeTag(0, 1), theirs).Wait(Soon()));
  EXPECT_OK(send.Wait(Soon()));
  EXPECT_TRUE(theirs == mine);
}

TEST(TcpFaults, a_frame_that_is_always_corrupt_loses_the_peer_with_the_counts) {
  TransportSet set = MakeTcp(2, [](int rank) {
    TcpOptions options;
    options.reconnect_window = 200ms;
    options.payload_checks = PayloadChecks::kOn;
    if (rank == 1) options.tap = RandomFaults(1, 1000, 0, 0);
    return options;
  });
  ASSERT_EQ(set.ranks.size(), size_t{2});
  Buffer buffer(1000);
  const Buffer message = RandomBytes(1000, 1);
  Operation receive = set.ranks[0]->Recv(1, MakeTag(0, 1), buffer);
  Operation send = set.ranks[1]->Send(0, MakeTag(0, 1), message);
  const Status status = receive.Wait(Soon());
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.culprit(), 1);
  EXPECT_NE(status.message().find("corrupt 3 times"), std::string::npos) << status;
  EXPECT_EQ(set.ranks[0]->counters().frames_corrupt, 3u);
  // The other side finds out too, on every stream.
  EXPECT_EQ(set.ranks[1]->Recv(0, MakeTag(1, 1), buffer).Wait(Soon()).culprit(), 0);
}

// How many data frames of each rank carried a checksum, and how many did not.
struct FrameCounts {
  std::atomic<int> checked{0}, unchecked{0};
};

FrameTap Count(FrameCounts& counts) {
  return [&counts](int, const FrameHeader& frame) {
    if (frame.type == FrameType::kData) ++(frame.is_checked() ? counts.checked : counts.unchecked);
    return FrameFault::kNone;
  };
}

void ExchangeOnce(const TransportSet& set) {
  RunRanks(2, [&](int rank) {
    Transport& transport = *set.ranks[static_cast<size_t>(rank)];
    const Buffer mine = RandomBytes(600000, static_cast<unsigned>(rank));
    Buffer theirs(mine.size());
    Operation receive = transport.Recv(1 - rank, 1, theirs);
    EXPECT_OK(transport.Send(1 - rank, 1, mine).Wait(Soon()));
    EXPECT_OK(receive.Wait(Soon()));
    EXPECT_TRUE(theirs == RandomBytes(600000, 1 - static_cast<unsigned>(rank)));
  });
}

TEST(TcpFaults, payloads_carry_checksums_only_where_they_leave_the_host) {
  // The kernel dials every loopback address from 127.0.0.1, so the second looks like another host.
  for (const char* address : {"127.0.0.1:0", "127.0.0.2:0"}) {
    FrameCounts counts;
    const TransportSet set = MakeTcp(
        2,
        [&](int) {
          TcpOptions options;
          options.tap = Count(counts);
          return options;
        },
        address);
    ASSERT_EQ(set.ranks.size(), size_t{2});
    ExchangeOnce(set);
    const bool is_within_host = std::string(address) == "127.0.0.1:0";
    EXPECT_EQ(counts.checked > 0, !is_within_host) << address;
    EXPECT_EQ(counts.unchecked > 0, is_within_host) << address;
  }
}

TEST(TcpFaults, each_rank_decides_whether_its_own_payloads_carry_checksums) {
  std::array<FrameCounts, 2> counts;
  const TransportSet set = MakeTcp(2, [&](int rank) {
    TcpOptions options;
    options.payload_checks = rank == 0 ? PayloadChecks::kOn : PayloadChecks::kOff;
    options.tap = Count(counts[static_cast<size_t>(rank)]);
    return options;
  });
  ASSERT_EQ(set.ranks.size(), size_t{2});
  ExchangeOnce(set);
  EXPECT_GT(counts[0].checked, 0);
  EXPECT_EQ(counts[0].unchecked, 0);
  EXPECT_EQ(counts[1].checked, 0);
  EXPECT_GT(counts[1].unchecked, 0);
}

TEST(TcpFaults, a_peer_that_vanishes_is_lost_after_the_window_on_every_stream) {
  auto job = std::make_unique<TcpJob>(2);
  TransportSet set;
  set.ranks.resize(2);
  RunRanks(2, [&](int rank) {
    TcpOptions options;
    options.reconnect_window = 150ms;
    auto transport = ConnectTcpTransport(job->Context(rank), options);
    ASSERT_OK(transport);
    set.ranks[static_cast<size_t>(rank)] = std::move(*transport);
  });
  ASSERT_TRUE(set.ranks[0] != nullptr && set.ranks[1] != nullptr);
  Buffer first(10), second(10);
  Operation a = set.ranks[1]->Recv(0, MakeTag(0, 1), first);
  Operation b = set.ranks[1]->Recv(0, MakeTag(1, 1), second);

  set.ranks[0]->Abort(Aborted("dies without goodbye"));

  for (Operation* receive : {&a, &b}) {
    const Status status = receive->Wait(Soon());
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_EQ(status.culprit(), 0);
    EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status;
  }
  set.ranks.clear();
}

// Plays rank 1 of a job towards a real rank 0.
struct ImpostorJob {
  explicit ImpostorJob(TcpOptions options, std::chrono::milliseconds reconnect_window = 30ms)
      : job(2) {
    options.reconnect_window = reconnect_window;
    options.linger = 50ms;
    std::thread connecting([&] {
      ConnectContext context = job.Context(0);
      context.streams = 1;
      auto connected = ConnectTcpTransport(context, options);
      EXPECT_OK(connected);
      if (connected.ok()) transport = std::move(*connected);
    });
    socket = DialRank0();
    SendFrame({.type = FrameType::kHello});
    connecting.join();
  }

  UniqueFd DialRank0() {
    auto fd = Dial(job.listeners[0]->address(), job.secret, {"tcp", 1, 1, 0}, 0, Soon());
    EXPECT_OK(fd);
    return fd.ok() ? std::move(*fd) : UniqueFd();
  }
  void SendFrame(FrameHeader header) {
    header.epoch = 1;  // the job's
    FrameHeaderBytes bytes;
    EncodeFrameHeader(header, bytes);
    (void)WriteFull(socket.get(), bytes, Soon());
  }
  void SendRaw(const Buffer& bytes) { (void)WriteFull(socket.get(), bytes, Soon()); }
  void WaitUntilRank0Closes() {
    std::byte byte;
    Status status;
    for (const Deadline deadline = Soon(); status.ok();) {
      status = ReadFull(socket.get(), {&byte, 1}, deadline);
    }
    EXPECT_NE(status.code(), Code::kTimedOut) << status;
  }

  TcpJob job;
  UniqueFd socket;
  std::unique_ptr<Transport> transport;
};

void ExpectRankOneIsLost(ImpostorJob& impostor, const std::string& what) {
  Buffer buffer(64);
  ASSERT_TRUE(impostor.transport != nullptr);
  const Status status = impostor.transport->Recv(1, MakeTag(0, 1), buffer).Wait(Soon());
  EXPECT_EQ(status.code(), Code::kPeerLost) << what << status;
  EXPECT_EQ(status.culprit(), 1) << what;
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << what << status;
}

TEST(TcpFaults, garbage_of_an_authenticated_peer_names_it_and_breaks_nothing) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    ImpostorJob impostor({});
    std::mt19937 random(seed);
    impostor.SendRaw(RandomBytes(1 + random() % 20000, seed));
    impostor.socket.reset();
    ExpectRankOneIsLost(impostor, "seed " + std::to_string(seed));
    if (testing::CurrentTestFailed()) return;
  }
}

TEST(TcpFaults, frames_that_no_peer_would_send_name_it_and_break_nothing) {
  const FrameHeader bad[] = {
      {.type = FrameType::kHello},
      {.link = 7},
      {.sequence = 5, .message_bytes = 8, .payload_bytes = 8},
      {.ack = 99},
      {.type = FrameType::kAck, .ack = ~uint64_t{0}},
      {.type = FrameType::kNack, .sequence = 12},
      {.message_bytes = 100, .offset = 50, .payload_bytes = 50},
      {.message_bytes = 100, .offset = 200, .payload_bytes = 0},
      {.message_bytes = 100, .payload_bytes = 0},
      {.message_bytes = ~uint64_t{0}, .payload_bytes = 10},
      {.message_bytes = uint64_t{1} << 39, .payload_bytes = ~uint32_t{0}},
      {.type = static_cast<FrameType>(77)},
  };
  for (const FrameHeader& header : bad) {
    ImpostorJob impostor({});
    impostor.SendFrame(header);
    impostor.SendRaw(RandomBytes(200, 1));
    impostor.socket.reset();
    ExpectRankOneIsLost(impostor, "case " + std::to_string(&header - bad));
    if (testing::CurrentTestFailed()) return;
  }
}

// A frame in between is missing, and what comes now may be of another message.
TEST(TcpFaults, a_frame_that_does_not_follow_the_one_before_is_not_taken) {
  ImpostorJob impostor({});
  ASSERT_TRUE(impostor.transport != nullptr);
  Buffer buffer(8);
  auto receive = impostor.transport->Recv(1, MakeTag(0, 1), buffer);

  impostor.SendFrame({.flags = kFrameUnchecked,
                      .sequence = 3,
                      .tag = MakeTag(0, 1),
                      .message_bytes = buffer.size(),
                      .payload_bytes = static_cast<uint32_t>(buffer.size())});
  impostor.SendRaw(RandomBytes(buffer.size(), 1));
  impostor.WaitUntilRank0Closes();
  impostor.socket.reset();

  EXPECT_EQ(receive.Wait(Soon()).code(), Code::kPeerLost);
}

// What it acknowledges is gone from the queue, so what it asks for again would lie before it.
TEST(TcpFaults, a_request_for_frames_that_it_acknowledges_itself_is_refused) {
  ImpostorJob impostor({});
  ASSERT_TRUE(impostor.transport != nullptr);
  const Buffer message = RandomBytes(1000, 1);
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(impostor.transport->Send(1, MakeTag(0, 1), message).Wait(Soon()));
  }
  impostor.SendFrame({.type = FrameType::kNack, .sequence = 1, .ack = 3});
  impostor.WaitUntilRank0Closes();
  impostor.socket.reset();
  ExpectRankOneIsLost(impostor, "a request for frame 1 behind an acknowledgement of frame 2");
}

// Header fields at random behind a right checksum: the parser and the state machine must hold.
TEST(TcpFaults, random_well_formed_headers_never_crash) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 12; ++round) {
    ImpostorJob impostor({});
    Buffer stream;
    for (int frame = 0; frame < 30; ++frame) {
      FrameHeader header{.type = static_cast<FrameType>(1 + random() % 7),
                         .flags = static_cast<uint8_t>(random()),
                         .link = static_cast<uint8_t>(random() % 8 == 0),
                         .sequence = random() % 3,
                         .ack = random() % 8 == 0 ? 1u : 0u,
                         .tag = MakeTag(0, random() % 2),
                         .message_bytes = random() % 300,
                         .offset = random() % 4 == 0 ? random() % 300 : 0,
                         .payload_bytes = static_cast<uint32_t>(random() % 300),
                         .payload_crc = static_cast<uint32_t>(random())};
      FrameHeaderBytes bytes;
      header.epoch = random() % 8 == 0 ? static_cast<uint32_t>(random()) : 1;
      EncodeFrameHeader(header, bytes);
      stream.insert(stream.end(), bytes.begin(), bytes.end());
      if (random() % 2 == 0) stream.resize(stream.size() + header.payload_bytes);
    }
    impostor.SendRaw(stream);
    impostor.socket.reset();
    Buffer buffer(64);
    ASSERT_TRUE(impostor.transport != nullptr);
    const Status status = impostor.transport->Recv(1, MakeTag(0, 9), buffer).Wait(Soon());
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.culprit(), 1) << status;
  }
}

// Garbage once more after every reconnection: the tries are bounded, not only the time.
TEST(TcpFaults, a_peer_that_only_sends_garbage_is_given_up) {
  ImpostorJob impostor({}, 60s);
  ASSERT_TRUE(impostor.transport != nullptr);
  const int tries = TcpOptions{}.connections_without_progress_max;
  for (int i = 1; i <= tries; ++i) {
    impostor.SendRaw(RandomBytes(100, static_cast<unsigned>(i)));
    // A connection made now would replace this one, and its garbage might never be read.
    impostor.WaitUntilRank0Closes();
    if (i == tries || testing::CurrentTestFailed()) break;
    impostor.socket = impostor.DialRank0();
    impostor.SendFrame({.type = FrameType::kHello});
  }

  Buffer buffer(64);
  const Status status = impostor.transport->Recv(1, MakeTag(0, 1), buffer).Wait(Soon());

  EXPECT_EQ(status.code(), Code::kPeerLost) << status;
  EXPECT_EQ(status.culprit(), 1);
  EXPECT_NE(status.message().find("broke " + std::to_string(tries) + " times in a row"),
            std::string::npos)
      << status;
}

TEST(TcpFaults, strangers_at_the_data_port_disturb_nothing) {
  auto job = std::make_shared<TcpJob>(2);
  TransportSet set;
  set.ranks.resize(2);
  RunRanks(2, [&](int rank) {
    auto transport = ConnectTcpTransport(job->Context(rank), TcpOptions{});
    ASSERT_OK(transport);
    set.ranks[static_cast<size_t>(rank)] = std::move(*transport);
  });
  ASSERT_TRUE(set.ranks[0] != nullptr && set.ranks[1] != nullptr);
  std::atomic<bool> is_over{false};
  std::thread stranger([&] {
    const auto addresses = Resolve(job->listeners[0]->address());
    for (unsigned i = 0; i < 200 && !is_over.load(); ++i) {
      auto fd = Connect(addresses->front(), Soon());
      if (fd.ok()) (void)WriteFull(fd->get(), RandomBytes(1 + i * 37 % 3000, i), After(1s));
    }
  });
  RunRanks(2, [&](int rank) {
    for (unsigned i = 0; i < 50; ++i) {
      const Buffer mine = RandomBytes(20000, i * 2 + static_cast<unsigned>(rank));
      Buffer theirs(mine.size());
      Operation receive = set.ranks[static_cast<size_t>(rank)]->Recv(1 - rank, 1, theirs);
      EXPECT_OK(set.ranks[static_cast<size_t>(rank)]->Send(1 - rank, 1, mine).Wait(Soon()));
      EXPECT_OK(receive.Wait(Soon()));
      EXPECT_TRUE(theirs == RandomBytes(20000, i * 2 + 1 - static_cast<unsigned>(rank)));
    }
  });
  is_over.store(true);
  stranger.join();
  set.ranks.clear();
}

}  // namespace
}  // namespace rabit

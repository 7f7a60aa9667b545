// One flipped bit after another in everything that passes between two ranks: handshakes, the first
// frames of a connection, data and control messages.  Each run takes another part of all positions:
// `make flips` takes all of them.
#include <array>
#include <cstdio>
#include <mutex>
#include <optional>
#include <random>

#include "testing/bad_wire.h"
#include "testing/same_bytes.h"
#include "testing/soon.h"
#include "testing/tcp_job.h"
#include "transport/tcp/tcp_channel.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;
using testing::BadWire;
using testing::RunRanks;
using testing::SameBytes;
using testing::Soon;
using testing::TcpJob;

using Buffer = std::vector<std::byte>;

// Of a connection's beginning: what the dialler sends is hello, proof and a first frame, what is
// answered a reply and a first frame.
constexpr unsigned kDiallerBytes = 72 + 32 + 64;
constexpr unsigned kAnswerBytes = 88 + 64;
constexpr unsigned kBits = 8 * (kDiallerBytes + kAnswerBytes);
// Has no divisor in common with kBits, so that strides meet every bit.
constexpr unsigned kStride = 1027;

// Flips one bit where it is told to, once.
class Flipper {
 public:
  // The connection breaks, and of the next one a bit is flipped: counted over its first bytes.
  void FlipAtStart(unsigned bit) {
    std::lock_guard lock(mutex_);
    const unsigned offset = bit / 8;
    is_answer_ = offset >= kDiallerBytes;
    offset_ = is_answer_ ? offset - kDiallerBytes : offset;
    bit_ = bit % 8;
    wants_reset_ = true;
    after_ = newest_;
    is_armed_ = true;
  }
  // Some bit of the next piece behind a handshake.
  void FlipNext(bool is_answer, unsigned random) {
    std::lock_guard lock(mutex_);
    is_answer_ = is_answer;
    offset_.reset();
    bit_ = random;
    is_armed_ = true;
  }
  bool is_armed() {
    std::lock_guard lock(mutex_);
    return is_armed_;
  }

  BadWire::Fate Pass(const BadWire::Piece& piece) {
    std::lock_guard lock(mutex_);
    newest_ = std::max(newest_, piece.connection);
    if (wants_reset_) {
      wants_reset_ = false;
      after_ = newest_;
      return BadWire::Fate::kReset;
    }
    if (!is_armed_ || piece.is_answer != is_answer_) return BadWire::Fate::kPass;
    if (!offset_) {
      if (!testing::IsBehindHandshake(piece.is_answer, piece.offset)) return BadWire::Fate::kPass;
      Flip(piece.bytes, bit_ / 8 % piece.bytes.size());
    } else if (piece.connection > after_ && *offset_ >= piece.offset &&
               *offset_ < piece.offset + piece.bytes.size()) {
      Flip(piece.bytes, *offset_ - piece.offset);
    }
    return BadWire::Fate::kPass;
  }

 private:
  void Flip(Bytes bytes, uint64_t at) {
    bytes[at] ^= static_cast<std::byte>(1u << (bit_ % 8));
    is_armed_ = false;
  }

  std::mutex mutex_;
  bool is_armed_ = false;
  bool wants_reset_ = false;
  bool is_answer_ = false;
  std::optional<uint64_t> offset_;
  unsigned bit_ = 0;
  int newest_ = 0;
  int after_ = 0;
};

Buffer RandomBytes(std::mt19937& random, size_t bytes) {
  Buffer buffer(bytes);
  for (std::byte& each : buffer) each = static_cast<std::byte>(random());
  return buffer;
}

// Two ranks, of which rank 1 reaches rank 0 by the wire.
struct Pair {
  Pair()
      : job(2), wire(job.listeners[0]->address(), [this](const BadWire::Piece& piece) {
          return flipper.Pass(piece);
        }) {
    EXPECT_OK(job.store.Set("1/address/0", wire.address()));
  }

  Flipper flipper;
  TcpJob job;
  BadWire wire;
};

struct DataPair : Pair {
  DataPair() {
    RunRanks(2, [&](int rank) {
      TcpOptions options;
      options.payload_checks = PayloadChecks::kOn;
      ConnectContext context = job.Context(rank);
      context.streams = 1;
      auto made = ConnectTcpTransport(context, options);
      ASSERT_OK(made);
      ends[static_cast<size_t>(rank)] = std::move(*made);
    });
  }
  // One message each way.
  void Exchange(std::mt19937& random) {
    const size_t bytes = random() % 8 == 0 ? random() % 40000 : random() % 900;
    const std::array<Buffer, 2> sent = {RandomBytes(random, bytes), RandomBytes(random, bytes)};
    RunRanks(2, [&](int rank) {
      Transport& transport = *ends[static_cast<size_t>(rank)];
      Buffer theirs(bytes);
      Operation receive = transport.Recv(1 - rank, MakeTag(0, 1), theirs);
      EXPECT_OK(
          transport.Send(1 - rank, MakeTag(0, 1), sent[static_cast<size_t>(rank)]).Wait(Soon()));
      EXPECT_OK(receive.Wait(Soon()));
      EXPECT_TRUE(SameBytes(theirs, sent[static_cast<size_t>(1 - rank)])) << "on rank" << rank;
    });
  }
  std::array<std::unique_ptr<Transport>, 2> ends;
};

struct ControlPair : Pair {
  ControlPair() {
    RunRanks(2, [&](int rank) {
      auto made = ConnectTcpChannel(job.Context(rank), RankTree::Star(2), ChannelOptions());
      ASSERT_OK(made);
      ends[static_cast<size_t>(rank)] = std::move(*made);
    });
  }
  void Exchange(std::mt19937& random) {
    const size_t bytes = random() % 8 == 0 ? random() % 9000 : random() % 200;
    const std::array<Buffer, 2> sent = {RandomBytes(random, bytes), RandomBytes(random, bytes)};
    RunRanks(2, [&](int rank) {
      Channel& channel = *ends[static_cast<size_t>(rank)];
      EXPECT_OK(channel.Send(1 - rank, sent[static_cast<size_t>(rank)]));
      auto received = channel.Receive(Soon());
      ASSERT_OK(received);
      ASSERT_TRUE(received->has_value());
      EXPECT_TRUE(SameBytes((*received)->payload, sent[static_cast<size_t>(1 - rank)]))
          << "on rank" << rank;
    });
  }
  std::array<std::unique_ptr<Channel>, 2> ends;
};

struct Counts {
  int runs = 0;
  int starts = 0;   // flips in the first bytes of a connection
  int streams = 0;  // behind them
};

// `starts` and `streams` flips, each healed before the next.
template <class AnyPair>
void FlipOneByOne(const char* what, Counts& counts, int starts, int streams) {
  const int run = counts.runs++;
  std::mt19937 random(static_cast<unsigned>(run) + 1);
  AnyPair pair;
  ASSERT_TRUE(pair.ends[0] != nullptr && pair.ends[1] != nullptr);
  pair.Exchange(random);
  for (int i = 0; i < starts + streams && !testing::CurrentTestFailed(); ++i) {
    const bool is_start = i % 2 == 0 ? i / 2 < starts : i / 2 >= streams;
    unsigned bit = static_cast<unsigned>(counts.starts) * kStride % kBits;
    if (!is_start) bit = random();
    if (is_start) {
      pair.flipper.FlipAtStart(bit);
    } else {
      pair.flipper.FlipNext(random() % 2 == 0, bit);
    }
    ++(is_start ? counts.starts : counts.streams);
    do {
      pair.Exchange(random);
    } while (pair.flipper.is_armed() && !testing::CurrentTestFailed());
    if (testing::CurrentTestFailed()) {
      ADD_FAILURE() << "bit" << bit << (is_start ? "of a start" : "of the stream") << "in run"
                    << run;
    }
  }
  uint64_t corrupt = 0;
  for (const auto& end : pair.ends) corrupt += end->counters().frames_corrupt;
  EXPECT_GT(corrupt, 0u);
  if (testing::CurrentTestFailed()) return;
  std::printf("%s: %d bits of %d in the first bytes of a connection, %d behind them: all healed\n",
              what, counts.starts, static_cast<int>(kBits), counts.streams);
}

TEST(Flips, of_a_data_connection_are_healed_wherever_they_are) {
  static Counts counts;
  FlipOneByOne<DataPair>("data", counts, 100, 100);
}

TEST(Flips, of_a_control_connection_are_healed_wherever_they_are) {
  static Counts counts;
  FlipOneByOne<ControlPair>("control", counts, 26, 26);
}

}  // namespace
}  // namespace rabit

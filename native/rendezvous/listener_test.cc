#include "rendezvous/listener.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "base/mutex.h"
#include "base/random.h"
#include "base/socket.h"
#include "base/wire.h"
#include "rendezvous/handshake.h"
#include "testing/bad_wire.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::Soon;

Secret SecretOf(uint8_t value) {
  Secret secret;
  secret.key.fill(value);
  return secret;
}

// What a handler received, to wait for.
class Inbox {
 public:
  void Take(AuthenticatedPeer peer) {
    MutexLock lock(mutex_);
    peers_.push_back(std::move(peer));
    changed_.NotifyAll();
  }
  AuthenticatedPeer Next() {
    MutexLock lock(mutex_);
    const Deadline deadline = Soon();
    while (peers_.empty() && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (peers_.empty()) {
      ADD_FAILURE() << "nobody came";
      return {};
    }
    AuthenticatedPeer peer = std::move(peers_.front());
    peers_.erase(peers_.begin());
    return peer;
  }
  size_t size() {
    MutexLock lock(mutex_);
    return peers_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<AuthenticatedPeer> peers_;
};

struct Host {
  explicit Host(std::string_view address = "127.0.0.1:0", uint64_t epoch = 1, int32_t rank = 0) {
    auto opened = Listener::Open(address, SecretOf(1), epoch, rank);
    EXPECT_OK(opened);
    if (!opened.ok()) return;
    listener = std::move(*opened);
    listener->SetHandler("channel",
                         [this](AuthenticatedPeer peer) { inbox.Take(std::move(peer)); });
  }
  Result<UniqueFd> DialIt(int32_t rank = 1,
                          std::chrono::nanoseconds time = std::chrono::seconds(20)) {
    return Dial(listener->address(), SecretOf(1), {"channel", 1, rank, 0}, 0, After(time));
  }
  UniqueFd Stranger() {
    auto addresses = Resolve(listener->address());
    auto fd = Connect(addresses->front(), Soon());
    EXPECT_OK(fd);
    return fd.ok() ? std::move(*fd) : UniqueFd();
  }
  Inbox inbox;
  std::unique_ptr<Listener> listener;
};

void ExpectPrompt(Host& host) {
  const auto start = std::chrono::steady_clock::now();
  auto fd = host.DialIt(5);
  ASSERT_OK(fd);
  EXPECT_EQ(host.inbox.Next().greeting.rank, 5);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(Listener, hands_over_who_came_and_their_bytes) {
  for (std::string_view address : {"127.0.0.1:0", "[::1]:0"}) {
    Host host(address);
    auto fd = Dial(host.listener->address(), SecretOf(1), {"channel", 1, 3, 2}, 0, Soon());
    ASSERT_OK(fd);
    ASSERT_OK(WriteFull(fd->get(), AsBytes("right behind"), Soon()));

    AuthenticatedPeer peer = host.inbox.Next();
    EXPECT_EQ(peer.greeting.purpose, "channel");
    EXPECT_EQ(peer.greeting.rank, 3);
    EXPECT_EQ(peer.greeting.stream, 2);
    std::byte text[12];
    ASSERT_OK(ReadFull(peer.fd.get(), text, Soon()));
    EXPECT_EQ(AsText(text), "right behind");
  }
}

TEST(Listener, keeps_connections_until_their_handler_is_set) {
  Host host;
  auto fd = Dial(host.listener->address(), SecretOf(1), {"tcp", 1, 2, 0}, 0, Soon());
  ASSERT_OK(fd);
  ExpectPrompt(host);
  Inbox later;
  host.listener->SetHandler("tcp", [&](AuthenticatedPeer peer) { later.Take(std::move(peer)); });

  EXPECT_EQ(later.Next().greeting.rank, 2);
  host.listener->RemoveHandler("tcp");
}

TEST(Listener, a_removed_handler_does_not_run_again) {
  Host host;
  std::atomic<bool> is_removed{false};
  std::atomic<int> late_calls{0};
  host.listener->SetHandler("tcp", [&](AuthenticatedPeer) {
    if (is_removed.load()) late_calls.fetch_add(1);
  });
  std::thread dialler([&] {
    for (int i = 0; i < 50; ++i) {
      EXPECT_OK(Dial(host.listener->address(), SecretOf(1), {"tcp", 1, 2, 0}, 0, Soon()));
    }
  });
  host.listener->RemoveHandler("tcp");
  is_removed.store(true);
  dialler.join();
  ExpectPrompt(host);
  EXPECT_EQ(late_calls.load(), 0);
}

TEST(Listener, a_wrong_secret_is_refused_on_both_sides) {
  Host host;
  const auto start = std::chrono::steady_clock::now();
  const Status status =
      Dial(host.listener->address(), SecretOf(2), {"channel", 1, 1, 0}, 0, Soon()).status();

  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("rank 0 at " + host.listener->address()), std::string::npos)
      << status;
  EXPECT_NE(status.message().find("another secret"), std::string::npos) << status;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));

  // One that goes on regardless is not handed over.
  UniqueFd fd = host.Stranger();
  Nonce nonce{};
  const Hello hello = EncodeHello({"channel", 1, 1, 0}, nonce);
  Reply reply;
  ASSERT_OK(WriteFull(fd.get(), hello, Soon()));
  ASSERT_OK(ReadFull(fd.get(), reply, Soon()));
  ASSERT_OK(WriteFull(fd.get(), MakeProof(SecretOf(2), hello, reply), Soon()));
  std::byte byte;
  EXPECT_EQ(ReadFull(fd.get(), {&byte, 1}, Soon()).code(), Code::kPeerLost);
  EXPECT_EQ(host.inbox.size(), 0u);
}

TEST(Listener, a_replayed_handshake_is_refused) {
  Host host;
  Nonce nonce{};
  const Hello hello = EncodeHello({"channel", 1, 1, 0}, nonce);
  Digest recorded{};
  for (bool is_replay : {false, true}) {
    UniqueFd fd = host.Stranger();
    Reply reply;
    ASSERT_OK(WriteFull(fd.get(), hello, Soon()));
    ASSERT_OK(ReadFull(fd.get(), reply, Soon()));
    if (!is_replay) recorded = MakeProof(SecretOf(1), hello, reply);
    ASSERT_OK(WriteFull(fd.get(), recorded, Soon()));
    std::byte byte;
    if (is_replay) {
      EXPECT_EQ(ReadFull(fd.get(), {&byte, 1}, Soon()).code(), Code::kPeerLost);
      EXPECT_EQ(host.inbox.size(), 0u);
    } else {
      EXPECT_EQ(host.inbox.Next().greeting.rank, 1);
    }
  }
}

TEST(Listener, another_epoch_or_rank_or_version_is_told) {
  Host host;
  const std::string address = host.listener->address();
  Status status = Dial(address, SecretOf(1), {"channel", 4, 1, 0}, 0, Soon()).status();
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("epoch 1 and this process to epoch 4"), std::string::npos)
      << status;

  status = Dial(address, SecretOf(1), {"channel", 1, 1, 0}, 6, Soon()).status();
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("rank 0 answered"), std::string::npos) << status;

  UniqueFd fd = host.Stranger();
  Hello hello = EncodeHello({"channel", 1, 1, 0}, Nonce{});
  StoreLittle<uint16_t>(hello.data() + 4, 2);
  ASSERT_OK(WriteFull(fd.get(), hello, Soon()));
  std::byte preamble[8];
  ASSERT_OK(ReadFull(fd.get(), preamble, Soon()));
  EXPECT_EQ(LoadLittle<uint16_t>(preamble + 4), kHandshakeVersion);
}

TEST(Listener, dialling_a_listener_of_another_version_is_told) {
  auto socket = Listen(Resolve("127.0.0.1:0")->front(), 1);
  ASSERT_OK(socket);
  std::thread server([&] {
    Reply reply = EncodeReply(SecretOf(1), Hello{}, {}, Nonce{});
    StoreLittle<uint16_t>(reply.data() + 4, 77);
    for (int i = 0; i < 3; ++i) {  // it might have been a bit that changed on the way
      EXPECT_OK(WaitReadable(socket->get(), Soon()));
      UniqueFd fd(::accept(socket->get(), nullptr, nullptr));
      EXPECT_OK(WriteFull(fd.get(), ConstBytes(reply).first(8), Soon()));
    }
  });
  const Status status =
      Dial(LocalAddress(socket->get())->ToString(), SecretOf(1), {"channel", 1, 1, 0}, 0, Soon())
          .status();
  server.join();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("version 77"), std::string::npos) << status;
}

TEST(Dial, an_answer_that_changed_on_the_way_is_asked_for_again) {
  const Host host("127.0.0.1:0");
  for (const uint64_t changed : {0u, 4u, 6u, 30u, 87u}) {  // magic, version, kind, nonce, proof
    testing::BadWire wire(host.listener->address(), [&](const testing::BadWire::Piece& piece) {
      const bool is_hit = piece.connection == 0 && piece.is_answer && piece.offset <= changed &&
                          changed < piece.offset + piece.bytes.size();
      if (is_hit) piece.bytes[changed - piece.offset] ^= std::byte{1};
      return testing::BadWire::Fate::kPass;
    });
    EXPECT_OK(Dial(wire.address(), SecretOf(1), {"channel", 1, 1, 0}, 0, Soon()))
        << "at" << changed;
  }
}

TEST(Dial, waits_for_a_listener_that_starts_late) {
  std::string address;
  {
    auto socket = Listen(Resolve("127.0.0.1:0")->front(), 1);
    address = LocalAddress(socket->get())->ToString();
  }
  Result<UniqueFd> fd = Internal("not dialled");
  std::thread dialler([&] { fd = Dial(address, SecretOf(1), {"channel", 1, 1, 0}, 0, Soon()); });
  Host host(address);
  dialler.join();
  EXPECT_OK(fd);
}

TEST(Dial, a_port_that_refuses_until_the_deadline_is_named_with_the_time) {
  std::string address;
  {
    auto socket = Listen(Resolve("127.0.0.1:0")->front(), 1);
    address = LocalAddress(socket->get())->ToString();
  }
  const Status status =
      Dial(address, SecretOf(1), {"channel", 1, 2, 0}, 0, After(std::chrono::milliseconds(300)))
          .status();

  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_NE(status.message().find("rank 0 at " + address), std::string::npos) << status;
  EXPECT_NE(status.message().find("from rank 2"), std::string::npos) << status;
  EXPECT_NE(status.message().find("within 0."), std::string::npos) << status;
  EXPECT_NE(status.message().find("refused"), std::string::npos) << status;
}

TEST(Dial, several_come_in_order_and_one_that_fails_harms_no_other) {
  Host first, last;
  std::string nobody;
  {
    auto socket = Listen(Resolve("127.0.0.1:0")->front(), 1);
    nobody = LocalAddress(socket->get())->ToString();
  }
  const DialTarget targets[] = {{first.listener->address(), {"channel", 1, 3, 7}, 0},
                                {nobody, {"channel", 1, 3, 8}, 5},
                                {last.listener->address(), {"channel", 1, 3, 9}, 0}};

  const auto made = DialAll(targets, SecretOf(1), After(std::chrono::seconds(2)));

  ASSERT_EQ(made.size(), size_t{3});
  EXPECT_OK(made[0]);
  EXPECT_NE(made[1].status().message().find("rank 5 at " + nobody), std::string::npos);
  EXPECT_OK(made[2]);
  EXPECT_EQ(first.inbox.Next().greeting.stream, 7);
  EXPECT_EQ(last.inbox.Next().greeting.stream, 9);
}

TEST(Dial, several_do_not_wait_behind_one_that_hangs) {
  Host host;
  auto hangs = Listen(Resolve("127.0.0.1:0")->front(), 4);
  const std::string address = LocalAddress(hangs->get())->ToString();
  const DialTarget targets[] = {{address, {"channel", 1, 3, 0}, 5},
                                {host.listener->address(), {"channel", 1, 3, 1}, 0}};
  std::vector<Result<UniqueFd>> made;
  std::atomic<bool> may_end{false}, has_ended{false};
  std::thread dialler([&] {
    made = DialAll(targets, SecretOf(1), Soon(),
                   [&] { return may_end.load() ? Aborted("enough") : Status(); });
    has_ended.store(true);
  });

  EXPECT_EQ(host.inbox.Next().greeting.stream, 1);
  EXPECT_FALSE(has_ended.load());
  may_end.store(true);
  hangs->reset();
  dialler.join();
  EXPECT_EQ(made[0].status().code(), Code::kAborted);
  EXPECT_OK(made[1]);
}

TEST(Dial, an_unresolvable_host_is_named_at_once) {
  const Status status =
      Dial("no-such-host.invalid:1", SecretOf(1), {"store", 0, 1, 0}, -1, Soon()).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("'no-such-host.invalid' does not resolve"), std::string::npos);
}

TEST(Listener, random_bytes_neither_stop_it_nor_get_through) {
  Host host;
  std::mt19937 random(17);
  const Hello valid = EncodeHello({"channel", 1, 1, 0}, Nonce{});
  for (int round = 0; round < 10'000; ++round) {
    std::vector<std::byte> bytes(random() % 200 + 1);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    // A third looks like a hello, or like one of a huge message.
    if (round % 3 == 0)
      std::copy_n(valid.begin(), std::min(bytes.size(), valid.size()), bytes.begin());
    UniqueFd fd = host.Stranger();
    if (!fd.is_open()) return;
    const Status ignored = WriteFull(fd.get(), bytes, Soon());
  }
  ExpectPrompt(host);
  EXPECT_EQ(host.inbox.size(), 0u);
}

TEST(Listener, a_handshake_cut_at_any_byte_gets_nowhere) {
  Host host;
  for (size_t cut = 0; cut < kHelloBytes + kProofBytes; ++cut) {
    UniqueFd fd = host.Stranger();
    const Hello hello = EncodeHello({"channel", 1, 1, 0}, Nonce{});
    ASSERT_OK(WriteFull(fd.get(), ConstBytes(hello).first(std::min(cut, kHelloBytes)), Soon()));
    if (cut <= kHelloBytes) continue;
    Reply reply;
    ASSERT_OK(ReadFull(fd.get(), reply, Soon()));
    const Digest proof = MakeProof(SecretOf(1), hello, reply);
    ASSERT_OK(WriteFull(fd.get(), ConstBytes(proof).first(cut - kHelloBytes), Soon()));
  }
  ExpectPrompt(host);
  EXPECT_EQ(host.inbox.size(), 0u);
}

TEST(Listener, five_hundred_silent_strangers_neither_stall_nor_fatten_it) {
  Host host;
  ExpectPrompt(host);
  const size_t before = ResidentBytes();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 500; ++i) {
    strangers.push_back(host.Stranger());
    if (i % 50 == 0) ExpectPrompt(host);
  }
  ExpectPrompt(host);
  EXPECT_LT(ResidentBytes(), before + (8u << 20));
  // The oldest are dropped when 256 wait, or fewer where few files can be opened, and the rest after two seconds.
  std::byte byte;
  EXPECT_EQ(ReadFull(strangers.front().get(), {&byte, 1}, Soon()).code(), Code::kPeerLost);
  EXPECT_EQ(ReadFull(strangers.back().get(), {&byte, 1}, Soon()).code(), Code::kPeerLost);
}

}  // namespace
}  // namespace rabit

#include "rendezvous/tcp_store.h"

#include <random>
#include <string>
#include <thread>

#include "base/socket.h"
#include "base/wire.h"
#include "rendezvous/store_server.h"
#include "testing/soon.h"
#include "testing/store_conformance.h"

namespace rabit {
namespace {

using testing::Soon;

Secret StoreSecret() {
  Secret secret;
  secret.key.fill(42);
  return secret;
}

struct Fixture {
  Fixture() {
    auto started = StoreServer::Start("127.0.0.1:0", StoreSecret());
    EXPECT_OK(started);
    if (started.ok()) server = std::move(*started);
  }
  std::unique_ptr<TcpStore> Open() {
    auto store = TcpStore::Connect(server->address(), StoreSecret(), 1, Soon());
    EXPECT_OK(store);
    return store.ok() ? std::move(*store) : nullptr;
  }
  UniqueFd RawConnection() {
    auto fd = Dial(server->address(), StoreSecret(), {"store", 0, 1, 0}, -1, Soon());
    EXPECT_OK(fd);
    return fd.ok() ? std::move(*fd) : UniqueFd();
  }
  std::unique_ptr<StoreServer> server;
};

RABIT_STORE_SUITE(TcpStore, Fixture);

TEST(TcpStore, a_wrong_secret_is_told_when_connecting) {
  Fixture fixture;
  const Status status = TcpStore::Connect(fixture.server->address(), Secret{}, 2, Soon()).status();

  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("another secret"), std::string::npos) << status;
}

// Connections that a listener has handed over, to wait for.
class Arrivals {
 public:
  void Add(UniqueFd fd) {
    MutexLock lock(mutex_);
    fds_.push_back(std::move(fd));
    changed_.NotifyAll();
  }
  UniqueFd Next() {
    MutexLock lock(mutex_);
    const Deadline deadline = Soon();
    while (fds_.empty() && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (fds_.empty()) return {};
    UniqueFd fd = std::move(fds_.front());
    fds_.erase(fds_.begin());
    return fd;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<UniqueFd> fds_ RABIT_GUARDED_BY(mutex_);
};

TEST(TcpStore, a_connection_that_is_dropped_before_any_answer_is_made_anew) {
  Arrivals arrivals;
  auto listener = Listener::Open("127.0.0.1:0", StoreSecret(), 0, 0);
  ASSERT_OK(listener);
  (*listener)->SetHandler("store", [&](AuthenticatedPeer peer) { arrivals.Add(std::move(peer.fd)); });
  Status connected = Internal("not tried");
  std::thread client([&] {
    connected = TcpStore::Connect((*listener)->address(), StoreSecret(), 1, Soon()).status();
  });
  arrivals.Next().reset();
  const UniqueFd second = arrivals.Next();
  if (second.is_open()) {
    std::byte length[kStoreLengthBytes];
    EXPECT_OK(ReadFull(second.get(), length, Soon()));
    EXPECT_OK(WriteFull(second.get(), EncodeStoreResponse(StoreResponse{}), Soon()));
  }
  client.join();

  EXPECT_TRUE(second.is_open());
  EXPECT_OK(connected);
}

TEST(TcpStore, two_hundred_clients_in_turn_are_quick) {
  Fixture fixture;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) {
    auto store = fixture.Open();
    EXPECT_EQ(*store->SetOnce("clients", std::to_string(i)), "0");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(TcpStore, a_server_that_goes_away_is_named_and_ends_a_wait) {
  Fixture fixture;
  auto store = fixture.Open();
  ASSERT_OK(store->Set("a", "1"));
  const std::string address = fixture.server->address();
  Status status;
  std::thread waiter([&] { status = store->Get("never", Soon()).status(); });
  ASSERT_OK(fixture.Open()->Get("a", Soon()));
  fixture.server.reset();
  waiter.join();

  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(address), std::string::npos) << status;
}

TEST(StoreServer, a_client_that_sends_nonsense_is_dropped_and_the_others_are_served) {
  Fixture fixture;
  auto store = fixture.Open();
  std::mt19937 random(23);
  for (int round = 0; round < 500; ++round) {
    UniqueFd fd = fixture.RawConnection();
    std::vector<std::byte> bytes(random() % 100 + 12);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (round % 2 == 0)
      StoreLittle<uint32_t>(bytes.data(), static_cast<uint32_t>(bytes.size()) - 4);
    if (round % 4 == 0) bytes[4] = std::byte{kStoreWireVersion};
    ASSERT_OK(WriteFull(fd.get(), bytes, Soon()));
    if (round % 10 != 0) continue;
    EXPECT_OK(store->Set("round", std::to_string(round)));
  }
  EXPECT_EQ(store->Watch("round", 0, Soon())->version, 50u);
}

TEST(StoreServer, an_oversized_length_is_refused_before_memory_is_taken) {
  Fixture fixture;
  UniqueFd fd = fixture.RawConnection();
  std::byte length[4];
  StoreLittle<uint32_t>(length, 0xffff'fff0u);
  ASSERT_OK(WriteFull(fd.get(), length, Soon()));

  std::byte byte;
  EXPECT_EQ(ReadFull(fd.get(), {&byte, 1}, Soon()).code(), Code::kPeerLost);
}

TEST(StoreServer, a_client_that_dies_while_it_waits_is_forgotten) {
  Fixture fixture;
  auto store = fixture.Open();
  for (int i = 0; i < 20; ++i) {
    UniqueFd fd = fixture.RawConnection();
    StoreRequest request;
    request.key = "gate";
    request.wait_ms = i % 2 == 0 ? 60'000 : 1;
    ASSERT_OK(WriteFull(fd.get(), EncodeStoreRequest(request), Soon()));
  }
  ASSERT_OK(store->Set("gate", "open"));
  EXPECT_EQ(*store->Get("gate", Soon()), "open");
}

TEST(StoreServer, a_wait_ends_when_the_key_that_ends_it_is_set) {
  Fixture fixture;
  auto store = fixture.Open();
  Status seen;
  std::thread waiter([&] { seen = store->WatchUnless("failed", "gate", 0, Soon()).status(); });

  ASSERT_OK(fixture.Open()->Set("failed", "rank 3"));

  waiter.join();
  EXPECT_EQ(seen.code(), Code::kAborted);
  EXPECT_NE(seen.message().find("'failed' has been set"), std::string::npos) << seen;
  EXPECT_EQ(store->WatchUnless("failed", "gate", 0, Soon()).status().code(), Code::kAborted);

  ASSERT_OK(store->Set("gate", "open"));
  EXPECT_EQ(store->WatchUnless("failed", "gate", 0, Soon())->value, "open");
  EXPECT_EQ(store->WatchUnless("none", "gate", 1, Deadline{}).status().code(), Code::kTimedOut);
}

TEST(StoreServer, waits_that_end_leave_nothing_with_either_key) {
  Fixture fixture;
  auto store = fixture.Open();
  for (int round = 0; round < 20; ++round) {
    const std::string gate = "gate " + std::to_string(round);
    std::thread waiter([&] { EXPECT_OK(store->WatchUnless("failed", gate, 0, Soon()).status()); });
    ASSERT_OK(store->Set(gate, "open"));
    waiter.join();
  }

  ASSERT_OK(store->Set("failed", "now"));
  EXPECT_EQ(*store->Get("failed", Soon()), "now");
}

TEST(StoreWire, truncated_frames_are_refused_at_every_byte) {
  StoreRequest request;
  request.op = StoreOp::kSet;
  request.key = "key";
  request.value = "value";
  const std::vector<std::byte> frame = EncodeStoreRequest(request);
  const ConstBytes body = ConstBytes(frame).subspan(kStoreLengthBytes);
  EXPECT_EQ(LoadLittle<uint32_t>(frame.data()), body.size());
  for (size_t cut = 0; cut < body.size(); ++cut) {
    EXPECT_FALSE(DecodeStoreRequest(body.first(cut)).ok()) << cut;
  }
  const std::vector<std::byte> answer = EncodeStoreResponse({Code::kOk, true, 3, "value"});
  for (size_t cut = kStoreLengthBytes; cut < answer.size(); ++cut) {
    const ConstBytes part = ConstBytes(answer).first(cut).subspan(kStoreLengthBytes);
    EXPECT_FALSE(DecodeStoreResponse(part).ok()) << cut;
  }
  auto decoded = DecodeStoreRequest(body);
  ASSERT_OK(decoded);
  EXPECT_EQ(decoded->value, "value");
}

}  // namespace
}  // namespace rabit

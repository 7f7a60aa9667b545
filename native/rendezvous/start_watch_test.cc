#include "rendezvous/start_watch.h"

#include <memory>
#include <thread>
#include <vector>

#include "rendezvous/store_server.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::Soon;

using std::chrono_literals::operator""s;

// Ranks that have joined one start.
struct Start {
  struct Rank {
    std::unique_ptr<TcpStore> store;
    std::unique_ptr<StartWatch> watch;
    // As if the process had been killed: the connection goes, the will stays.
    void Die() {
      // Its end would take the will back; and what a constant points to is no leak.
      static auto& never_ended = *new std::vector<StartWatch*>;
      never_ended.push_back(watch.release());
      store.reset();
    }
  };

  explicit Start(int size) {
    secret.key.fill(3);
    server = *StoreServer::Start("127.0.0.1:0", secret);
    for (int rank = 0; rank < size; ++rank) {
      Rank& made = ranks.emplace_back();
      made.store = *TcpStore::Connect(server->address(), secret, rank, Soon());
      made.watch = std::make_unique<StartWatch>(*made.store, 1, rank);
      EXPECT_OK(made.watch->Join(Soon()));
    }
  }

  Secret secret;
  std::unique_ptr<StoreServer> server;
  std::vector<Rank> ranks;
};

// Joins epoch `epoch` with two ranks, which publish what ranks do; the first ends, then the second.
void LiveThrough(TcpStore& first, TcpStore& second, int epoch) {
  const std::string scope = std::to_string(epoch) + "/";
  auto ending = std::make_unique<StartWatch>(first, epoch, 0);
  EXPECT_OK(ending->Join(Soon()));
  EXPECT_OK(ending->Set(scope + "host/0", std::string(kStoreValueBytesMax, 'x')));
  StartWatch staying(second, epoch, 1);
  EXPECT_OK(staying.Join(Soon()));
  ending.reset();
  EXPECT_OK(staying.Get(scope + "host/0", Soon()));
}

bool IsGone(TcpStore& store, const std::string& key) {
  return store.Get(key, Deadline{}).status().code() == Code::kTimedOut;
}

// 600 epochs of 64 KiB are more than half of what a store takes in all, had it kept them; the keys
// of each are asked for.
TEST(StartWatch, the_keys_of_an_epoch_go_with_its_last_rank) {
  Start start(2);
  EXPECT_OK(start.ranks[0].store->Set("member/host/0", "stays"));
  for (int epoch = 2; epoch < 602; ++epoch) {
    LiveThrough(*start.ranks[0].store, *start.ranks[1].store, epoch);
  }
  for (int epoch = 2; epoch < 602; ++epoch) {
    // The end of the last will is read by the server in its own time.
    const std::string key = std::to_string(epoch) + "/host/0";
    const Deadline deadline = Soon();
    while (!IsGone(*start.ranks[0].store, key) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(IsGone(*start.ranks[0].store, key)) << key;
  }
  EXPECT_OK(start.ranks[0].store->Get("member/host/0", Soon()));
}

TEST(StartWatch, the_will_of_a_server_takes_no_keys_along) {
  Start start(2);
  start.ranks[0].watch.reset();
  EXPECT_OK(start.ranks[0].store->LeaveWill("servers/ended/0", "host", Soon()));
  EXPECT_OK(start.ranks[0].store->Set("servers/begun/1", "here"));

  start.ranks[0].store.reset();

  EXPECT_OK(start.ranks[1].store->Get("servers/ended/0", Soon()));
  EXPECT_OK(start.ranks[1].store->Get("servers/begun/1", Soon()));
}

TEST(StartWatch, a_late_rank_still_hears_why_the_others_have_gone) {
  Start start(2);
  EXPECT_OK(start.ranks[0].watch->Set("1/host/0", "here"));
  EXPECT_EQ(start.ranks[0].watch->Fail(Mismatch("settings differ")).code(), Code::kMismatch);
  start.ranks[0].watch.reset();
  start.ranks[1].watch.reset();

  StartWatch late(*start.ranks[1].store, 1, 2);
  EXPECT_OK(late.Join(Soon()));

  const Status seen = late.Get("1/host/0", Soon()).status();
  EXPECT_EQ(seen.code(), Code::kMismatch);
  EXPECT_NE(seen.message().find("settings differ"), std::string::npos) << seen;
}

TEST(StartWatch, a_rank_that_dies_ends_the_waits_of_the_others) {
  Start start(2);
  Status seen;
  std::thread waiter([&] { seen = start.ranks[0].watch->Get("1/host/1", Soon()).status(); });

  start.ranks[1].Die();

  waiter.join();
  EXPECT_EQ(seen.code(), Code::kPeerLost);
  EXPECT_EQ(seen.culprit(), 1);
  EXPECT_NE(seen.message().find("rank 1 ended before all ranks had started"), std::string::npos);
  EXPECT_EQ(start.ranks[0].watch->Look().culprit(), 1);
}

TEST(StartWatch, what_is_in_the_store_is_read_all_the_same) {
  Start start(2);
  ASSERT_OK(start.ranks[1].watch->Set("1/host/1", "here"));
  start.ranks[1].Die();
  EXPECT_EQ(start.ranks[0].watch->Get("1/none", Soon()).status().culprit(), 1);

  EXPECT_EQ(*start.ranks[0].watch->Get("1/host/1", Soon()), "here");
}

TEST(StartWatch, a_rank_that_ends_in_order_is_no_failure) {
  Start start(2);

  start.ranks[1].watch.reset();
  start.ranks[1].store.reset();

  const Status status = start.ranks[0].watch->Get("1/host/1", After(0s)).status();
  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_OK(start.ranks[0].watch->Look());
}

TEST(StartWatch, the_reason_of_a_rank_reaches_the_others) {
  Start start(3);
  const Status own = InvalidArgument("port 70000 does not exist");

  EXPECT_EQ(start.ranks[2].watch->Fail(own).code(), Code::kInvalidArgument);
  // Both notice only that a connection broke: one that of the culprit, one a consequence.
  for (const int blamed : {2, 1}) {
    const Status verdict = start.ranks[0].watch->Fail(PeerLost(blamed, "it closed"));
    EXPECT_EQ(verdict.code(), Code::kPeerLost);
    EXPECT_EQ(verdict.culprit(), 2);
    EXPECT_EQ(verdict.message(), "rank 2 could not start: port 70000 does not exist");
  }
}

TEST(StartWatch, the_first_suspicion_is_everybodys) {
  Start start(3);

  EXPECT_EQ(start.ranks[0].watch->Fail(PeerLost(2, "silent")).culprit(), 2);
  EXPECT_EQ(start.ranks[1].watch->Fail(PeerLost(0, "it closed")).culprit(), 2);
  EXPECT_EQ(start.ranks[1].watch->Fail(Mismatch("settings differ")).code(), Code::kMismatch);
}

TEST(StartWatch, another_epoch_is_another_start) {
  Start start(2);
  StartWatch later(*start.ranks[0].store, 2, 0);
  start.ranks[1].Die();
  EXPECT_EQ(start.ranks[0].watch->Get("1/none", Soon()).status().culprit(), 1);

  EXPECT_OK(later.Look());
}

}  // namespace
}  // namespace rabit

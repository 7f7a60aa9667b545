// How a broken link finds out that its peer's process has ended.
#include "transport/tcp/redialer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "base/wake_signal.h"
#include "testing/test.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp/tcp_options.h"
#include "transport/tcp/tcp_stream.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;

constexpr int kUntilAsked = -1;

// A link of `rank` with `peer` whose other end has closed, and how often the peer's port is tried.
class BrokenLink final : public TcpLinkHost {
 public:
  explicit BrokenLink(int peer, int rank = 1) {
    auto stream = TcpStream::Open(SpinTimes{});
    EXPECT_OK(stream);
    stream_ = std::move(*stream);
    link_ = std::make_unique<TcpLink>(TcpLink::Id{rank, peer, 0, Stripe{}}, options_, counters_,
                                      *stream_, *this);
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    link_->Attach(UniqueFd(ends[0]));
    ::close(ends[1]);
    const Deadline end = After(20s);
    while (!link_->outage_deadline() && std::chrono::steady_clock::now() < end) stream_->ServeNow();
    EXPECT_TRUE(link_->outage_deadline().has_value());
  }

  void OnBroken(int, int) override {}
  void OnFailed(int, const Status& why) override {
    MutexLock lock(mutex_);
    why_ = why;
    changed_.NotifyAll();
  }
  void OnConnected() override {}

  // What the link is lost for when its peer's port hears so many knocks, or all until the first
  // dial, and so many dials, and refuses from then on.
  Status Redial(int knocks_heard, int dials_heard = 0, bool is_here = false) {
    Redialer redialer(
        1,
        [this, dials_heard](const TcpLink&, Deadline deadline) -> Result<UniqueFd> {
          ++dials;
          if (deadline < After(takes)) return TimedOut("no answer");
          if (dials <= dials_heard) return UniqueFd(::socket(AF_UNIX, SOCK_STREAM, 0));
          return PeerLost(link_->peer(), "refused");
        },
        [this, knocks_heard](const TcpLink&, Deadline deadline) {
          if (deadline < After(knock_takes)) return false;
          const int number = ++knocks;
          return knocks_heard == kUntilAsked ? dials > 0 : number > knocks_heard;
        },
        [is_here](const TcpLink&) { return is_here; });
    redialer.Request(*link_);
    MutexLock lock(mutex_);
    const Deadline end = After(20s);
    while (why_.ok() && changed_.WaitUntil(mutex_, end)) {
    }
    return why_;
  }

  TcpLink& link() { return *link_; }

  std::atomic<int> dials{0}, knocks{0};
  // Less time than this is too short for a dial, and for a knock.
  std::chrono::milliseconds takes{0}, knock_takes{0};

 private:
  const TcpOptions options_ = [] {
    TcpOptions options;
    options.reconnect_window = 20s;
    return options;
  }();
  TcpCounters counters_;
  std::unique_ptr<TcpStream> stream_;
  std::unique_ptr<TcpLink> link_;
  Mutex mutex_;
  CondVar changed_;
  Status why_ RABIT_GUARDED_BY(mutex_);
};

void ExpectEnded(const Status& why) {
  EXPECT_EQ(why.code(), Code::kPeerLost);
  // What is known is all that is said.
  EXPECT_TRUE(why.message().ends_with(
      "on TCP link 0: its port refuses connections: its process has ended; see its output"))
      << why;
}

TEST(Redialer, a_process_that_has_ended_is_lost_by_two_knocks_before_it_would_be_asked_to_dial) {
  BrokenLink link(2);

  ExpectEnded(link.Redial(0));
  EXPECT_EQ(link.knocks.load(), 2);
  EXPECT_EQ(link.dials.load(), 0);
}

TEST(Redialer, a_process_of_this_host_is_lost_by_its_first_refusal) {
  BrokenLink higher(2), lower(0);

  ExpectEnded(higher.Redial(0, 0, true));
  EXPECT_EQ(higher.knocks.load(), 1);
  EXPECT_EQ(higher.dials.load(), 0);
  ExpectEnded(lower.Redial(0, 0, true));
  EXPECT_EQ(lower.dials.load(), 1);
}

TEST(Redialer, a_process_whose_port_closes_after_its_connections_is_lost_by_another_knock) {
  BrokenLink link(2);

  ExpectEnded(link.Redial(1, 0, true));
  EXPECT_EQ(link.knocks.load() + link.dials.load(), 2);
}

TEST(Redialer, a_peer_that_hears_all_knocks_is_asked) {
  BrokenLink link(2);

  ExpectEnded(link.Redial(kUntilAsked));
  EXPECT_GE(link.knocks.load(), 2);
  EXPECT_LE(link.knocks.load(), 5);
  EXPECT_EQ(link.dials.load(), 1);
}

TEST(Redialer, a_peer_that_ends_after_it_was_asked_is_lost_without_being_asked_again) {
  BrokenLink link(2);

  ExpectEnded(link.Redial(kUntilAsked, 1));
  EXPECT_EQ(link.dials.load(), 1);
  EXPECT_GE(link.knocks.load(), 3);
}

TEST(Redialer, a_peer_that_is_far_away_gets_more_time) {
  BrokenLink lower(0), higher(2);
  lower.takes = higher.takes = 900ms;

  ExpectEnded(lower.Redial(0));
  EXPECT_EQ(lower.dials.load(), 4);  // 250 and 500 ms, then two that the port refuses
  ExpectEnded(higher.Redial(kUntilAsked));
  EXPECT_EQ(higher.dials.load(), 3);
}

TEST(Redialer, a_peer_that_ends_without_an_answer_to_the_first_request_is_lost) {
  BrokenLink link(2);
  link.takes = 300ms;
  link.knock_takes = 1ms;

  ExpectEnded(link.Redial(kUntilAsked));
  EXPECT_EQ(link.dials.load(), 2);
}

// Many links of a host that has vanished, each of whose tries takes its whole time, and one of a peer
// that answers.
TEST(Redialer, links_of_a_host_that_has_vanished_do_not_hold_up_others) {
  constexpr int kGone = 0, kAlive = 1, kLinks = 12;
  std::vector<std::unique_ptr<BrokenLink>> gone;
  for (int i = 0; i < kLinks; ++i) gone.push_back(std::make_unique<BrokenLink>(kGone));
  BrokenLink alive(kAlive, 2);
  std::atomic<int> tries{0}, tries_before{-1};
  std::atomic<bool> has_begun{false}, may_go_on{false};
  WakeSignal changed;
  const auto wait = [&](const std::atomic<bool>& flag) {
    EXPECT_TRUE(changed.Wait([&] { return flag.load(); }, After(20s)));
  };
  const auto set = [&](std::atomic<bool>& flag) {
    flag.store(true);
    changed.Notify();
  };
  std::atomic<bool> is_tried{false};
  Redialer redialer(
      2,
      [&](const TcpLink& link, Deadline) -> Result<UniqueFd> {
        if (link.peer() == kGone) {
          ++tries;
          set(has_begun);
          wait(may_go_on);
          return TimedOut("no answer");
        }
        tries_before.store(tries.load());
        set(is_tried);
        return PeerLost(kAlive, "refused");
      },
      [](const TcpLink&, Deadline) { return true; }, [](const TcpLink&) { return true; });
  redialer.Request(gone[0]->link());
  wait(has_begun);
  for (int i = 1; i < kLinks; ++i) redialer.Request(gone[static_cast<size_t>(i)]->link());
  redialer.Request(alive.link());

  set(may_go_on);
  wait(is_tried);

  EXPECT_EQ(tries_before.load(), 1);
  redialer.Stop();
}

TEST(Redialer, a_lower_rank_is_dialled_without_a_knock) {
  BrokenLink link(0);

  ExpectEnded(link.Redial(0));
  EXPECT_EQ(link.knocks.load(), 0);
  EXPECT_EQ(link.dials.load(), 2);
}

}  // namespace
}  // namespace rabit

// Heartbeats of data connections.
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "base/socket.h"
#include "base/unique_fd.h"
#include "testing/bad_wire.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"
#include "testing/tcp_job.h"
#include "testing/test.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/io_loop.h"
#include "transport/tcp/tcp_links.h"
#include "transport/tcp/tcp_options.h"
#include "transport/tcp/tcp_stream.h"
#include "transport/tcp/tcp_transport.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;

TcpOptions Beating(std::chrono::milliseconds timeout) {
  TcpOptions options;
  options.heartbeat_timeout = timeout;
  return options;
}

TEST(TcpSilence, a_peer_that_falls_silent_is_named_though_nothing_is_sent_to_it) {
  testing::TcpJob job(2);
  std::atomic<bool> is_silent{false};
  testing::BadWire wire(job.listeners[0]->address(), [&](const testing::BadWire::Piece&) {
    return is_silent.load() ? testing::BadWire::Fate::kSwallow : testing::BadWire::Fate::kPass;
  });
  ASSERT_OK(job.store.Set("1/address/0", wire.address()));
  std::array<std::unique_ptr<Transport>, 2> ranks;
  testing::RunRanks(2, [&](int rank) {
    auto transport = ConnectTcpTransport(job.Context(rank), Beating(300ms));
    ASSERT_OK(transport);
    ranks[static_cast<size_t>(rank)] = std::move(*transport);
  });
  ASSERT_TRUE(ranks[0] != nullptr && ranks[1] != nullptr);
  std::array<std::byte, 64> buffer;
  Operation receive = ranks[0]->Recv(1, MakeTag(2, 1), buffer);

  is_silent.store(true);
  const Status status = receive.Wait(testing::Soon());

  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.culprit(), 1);
  EXPECT_TRUE(testing::Has(status.message(), "(heartbeat timeout 0.3 s)")) << status;
}

TEST(TcpSilence, peers_that_only_beat_are_alive) {
  testing::TransportSet set = testing::MakeTcp(2, [](int) { return Beating(300ms); });
  ASSERT_EQ(set.ranks.size(), size_t{2});
  std::array<std::byte, 64> received, sent{};
  Operation receive = set.ranks[0]->Recv(1, MakeTag(0, 1), received);
  EXPECT_EQ(receive.Wait(After(900ms)).code(), Code::kTimedOut);

  Operation send = set.ranks[1]->Send(0, MakeTag(0, 1), sent);

  EXPECT_OK(send.Wait(testing::Soon()));
  EXPECT_OK(receive.Wait(testing::Soon()));
}

// One end of a connection between two ranks.  A clock serves its bytes; the time of its heartbeats
// is what the test says.
struct SilentEnd {
  std::unique_ptr<TcpStream> stream;
  std::unique_ptr<TcpLinks> links;
  std::unique_ptr<IoLoop> loop;
};

void Connect(SilentEnd& end, const ConnectContext& context, const TcpOptions& options) {
  auto stream = TcpStream::Open({});
  ASSERT_OK(stream);
  end.stream = std::move(*stream);
  end.links = std::make_unique<TcpLinks>(context, options,
                                         TcpLinks::Plan{.purpose = "tcp",
                                                        .what = "TCP",
                                                        .peers = {1 - context.rank},
                                                        .stream_of_link = {end.stream.get()},
                                                        .on_news = {},
                                                        .wake_ticker = [] {}});
  auto loop = IoLoop::Start([&end] { return end.stream->OnTick(After(0ms)); });
  ASSERT_OK(loop);
  end.loop = std::move(*loop);
  ASSERT_OK(end.stream->Attach(*end.loop));
  ASSERT_OK(end.links->Connect(context));
}

TEST(TcpSilence, a_peer_is_lost_before_its_time_is_over_and_not_a_beat_later) {
  testing::TcpJob job(2);
  TcpOptions options = Beating(80s);
  options.progress_timeout = 0ms;
  options.reconnect_window = 1h;
  std::array<SilentEnd, 2> ends;
  testing::RunRanks(2, [&](int rank) {
    Connect(ends[static_cast<size_t>(rank)], job.Context(rank), options);
  });
  TcpLink& link = *ends[0].links->With(1).front();
  ASSERT_TRUE(link.is_ready());

  // Rank 1 never beats.
  Deadline now = std::chrono::steady_clock::now();
  const Deadline connected = now;
  while (!link.has_failed() && now < connected + 200s) now = ends[0].links->Tick(now);

  EXPECT_EQ(link.failure().code(), Code::kPeerLost);
  EXPECT_TRUE(testing::Has(link.failure().message(), "for 79.8 s (heartbeat timeout 80.0 s)"))
      << link.failure();
}

// A link that nobody serves, as if its threads got no core, and the end of its peer.
class UnservedLink final : public TcpLinkHost {
 public:
  explicit UnservedLink(const TcpOptions& options = {}) : options_(options) {
    auto stream = TcpStream::Open({});
    EXPECT_OK(stream);
    stream_ = std::move(*stream);
    link_ = std::make_unique<TcpLink>(TcpLink::Id{0, 1, 0, Stripe{}}, options_, counters_, *stream_,
                                      *this);
    Connect();
  }
  void OnBroken(int, int) override {}
  void OnFailed(int, const Status&) override {}
  void OnConnected() override {}

  void Connect() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    peer_.reset(ends[1]);
    link_->Attach(UniqueFd(ends[0]));
  }
  void PeerSends(const FrameHeader& header) {
    FrameHeaderBytes bytes;
    EncodeFrameHeader(header, bytes);
    EXPECT_OK(WriteFull(peer_.get(), bytes, testing::Soon()));
  }
  void PeerCloses() { peer_.reset(); }
  TcpLink& link() { return *link_; }

 private:
  const TcpOptions options_;
  TcpCounters counters_;
  std::unique_ptr<TcpStream> stream_;
  std::unique_ptr<TcpLink> link_;
  UniqueFd peer_;
};

TEST(TcpSilence, a_connection_on_which_an_answer_lies_unread_is_whole) {
  UnservedLink unserved;
  TcpLink& link = unserved.link();
  unserved.PeerSends({.type = FrameType::kHello});
  ASSERT_TRUE(link.ReadNow());
  ASSERT_TRUE(link.is_ready());
  const std::array<std::byte, 64> message{};
  const Deadline now = std::chrono::steady_clock::now();
  link.CheckProgress(now);
  (void)link.Send(1, message);

  unserved.PeerSends({.type = FrameType::kAck, .ack = 1});
  link.CheckProgress(now + 1h);
  EXPECT_TRUE(link.is_connected());

  (void)link.Send(1, message);
  link.CheckProgress(now + 2h);
  EXPECT_FALSE(link.is_connected());
}

TEST(TcpSilence, a_new_connection_stays_though_the_peer_has_asked_for_one) {
  UnservedLink unserved;
  TcpLink& link = unserved.link();
  const Deadline made = std::chrono::steady_clock::now();  // or a little later

  link.Renew(made);
  unserved.PeerSends({.type = FrameType::kHello});
  ASSERT_TRUE(link.ReadNow());
  link.Renew(made);
  EXPECT_TRUE(link.is_connected());

  link.set_last_heard(made + 1h);
  link.Renew(made + 1h);
  EXPECT_FALSE(link.is_connected());
}

TEST(TcpSilence, a_peer_that_may_be_silent_for_long_may_take_longer_to_connect_again) {
  TcpOptions options;
  options.SetTimes(30s, false);
  UnservedLink unserved(options);
  const Deadline start = std::chrono::steady_clock::now();

  unserved.PeerCloses();
  (void)unserved.link().ReadNow();

  EXPECT_GE(unserved.link().outage_deadline().value_or(start), start + 60s);
}

}  // namespace
}  // namespace rabit

// Heartbeats of data connections.
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "testing/bad_wire.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"
#include "testing/tcp_job.h"
#include "testing/test.h"
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

}  // namespace
}  // namespace rabit

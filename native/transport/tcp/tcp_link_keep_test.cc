// What a connection that is kept is not asked again.
#include <sys/socket.h>

#include <memory>

#include "base/socket.h"
#include "testing/test.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp/tcp_options.h"
#include "transport/tcp/tcp_stream.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;

class NoHost final : public TcpLinkHost {
 public:
  void OnBroken(int, int) override {}
  void OnFailed(int, const Status&) override {}
  void OnConnected() override {}
};

// Both ends of a connection of this host.
struct Ends {
  Ends() {
    auto listening = Listen(Resolve("127.0.0.1:0")->front(), 1);
    mine = *Connect(*LocalAddress(listening->get()), After(20s));
    theirs = UniqueFd(::accept(listening->get(), nullptr, nullptr));
  }
  UniqueFd mine, theirs;
};

bool IsKeptAlive(int fd) {
  int value = 0;
  socklen_t bytes = sizeof value;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &bytes), 0);
  return value != 0;
}

// Whether a link sets the options of a socket of which `tuning` is known.
bool Tunes(std::optional<LinkTuning> tuning, bool is_many_to_one) {
  TcpOptions options;
  options.is_many_to_one = is_many_to_one;
  TcpCounters counters;
  auto stream = TcpStream::Open(SpinTimes{});
  NoHost host;
  Ends ends;
  const int fd = ends.mine.get();
  TcpLink link(TcpLink::Id{1, 0, 0, Stripe{}, 1, true}, options, counters, **stream, host);
  link.Attach(KeptSocket{.fd = std::move(ends.mine), .tuning = tuning});
  const bool is_tuned = IsKeptAlive(fd);
  const std::optional<KeptSocket> kept = link.Retire(Aborted("the epoch ends"));
  EXPECT_TRUE(kept && kept->tuning &&
              *kept->tuning == (LinkTuning{true, is_many_to_one}));
  return is_tuned;
}

TEST(TcpLinkKeep, a_connection_is_tuned_once_and_anew_for_other_options) {
  EXPECT_TRUE(Tunes({}, false));
  EXPECT_FALSE(Tunes(LinkTuning{true, false}, false));
  EXPECT_TRUE(Tunes(LinkTuning{true, true}, false));
}

// How many bytes a link writes on a connection before anybody sends anything.
size_t GreetingOf(int index, std::optional<LinkTuning> tuning, bool is_ready) {
  const TcpOptions options;
  TcpCounters counters;
  auto stream = TcpStream::Open(SpinTimes{});
  NoHost host;
  Ends ends;
  TcpLink link(TcpLink::Id{1, 0, index, Stripe{}, 1, true}, options, counters, **stream, host);
  link.Attach(KeptSocket{.fd = std::move(ends.mine), .tuning = tuning});
  EXPECT_EQ(link.is_ready(), is_ready);
  std::byte read[2 * kFrameHeaderBytes];
  const ssize_t bytes = ::recv(ends.theirs.get(), read, sizeof read, MSG_DONTWAIT);
  return bytes < 0 ? 0 : static_cast<size_t>(bytes);
}

TEST(TcpLinkKeep, only_the_first_connection_with_a_peer_is_greeted_anew) {
  EXPECT_EQ(GreetingOf(0, {}, false), kFrameHeaderBytes);
  EXPECT_EQ(GreetingOf(1, {}, false), kFrameHeaderBytes);
  EXPECT_EQ(GreetingOf(0, LinkTuning{}, false), kFrameHeaderBytes);
  EXPECT_EQ(GreetingOf(1, LinkTuning{}, true), 0u);
}

}  // namespace
}  // namespace rabit

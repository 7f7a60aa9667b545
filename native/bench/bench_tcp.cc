// Speed of the TCP transport between two ranks of this process.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "rendezvous/listener.h"
#include "testing/memory_store.h"
#include "testing/run_ranks.h"
#include "transport/tcp/tcp_transport.h"

namespace rabit {
namespace {

struct Timing {
  double seconds = 0;  // of wall time for one message, median
  double cpu_seconds = 0;
};

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// `is_exchange`: both ranks send at once; otherwise the message goes to and fro.
Timing Measure(const std::vector<std::unique_ptr<Transport>>& ranks, size_t bytes, bool is_exchange,
               int rounds) {
  std::vector<double> seconds;
  const double cpu_start = CpuSeconds();
  testing::RunRanks(2, [&](int rank) {
    Transport& transport = *ranks[static_cast<size_t>(rank)];
    std::vector<std::byte> out(bytes, std::byte{1});
    std::vector<std::byte> in(bytes);
    for (int i = 0; i < rounds; ++i) {
      const Tag tag = MakeTag(0, static_cast<uint64_t>(i));
      const Deadline deadline = After(std::chrono::seconds(60));
      const auto start = std::chrono::steady_clock::now();
      if (is_exchange) {
        Operation receive = transport.Recv(1 - rank, tag, in);
        Operation send = transport.Send(1 - rank, tag, out);
        Check(receive.Wait(deadline));
        Check(send.Wait(deadline));
      } else if (rank == 0) {
        Operation receive = transport.Recv(1, tag, in);
        Check(transport.Send(1, tag, out).Wait(deadline));
        Check(receive.Wait(deadline));
      } else {
        Check(transport.Recv(0, tag, in).Wait(deadline));
        Check(transport.Send(0, tag, out).Wait(deadline));
      }
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (rank == 0) seconds.push_back(taken.count() / (is_exchange ? 1 : 2));
    }
  });
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return {seconds[static_cast<size_t>(rounds / 2)], (CpuSeconds() - cpu_start) / (2.0 * rounds)};
}

int Main() {
  Secret secret;
  testing::MemoryStore store;
  Topology topology = Topology::Alike({0, 0}, FindProcessors());
  std::vector<std::unique_ptr<Listener>> listeners(2);
  for (int rank = 0; rank < 2; ++rank) {
    auto listener = Listener::Open("127.0.0.1:0", secret, 1, rank);
    Check(listener.status());
    listeners[static_cast<size_t>(rank)] = std::move(*listener);
    Check(store.Set("1/address/" + std::to_string(rank),
                    listeners[static_cast<size_t>(rank)]->address()));
  }
  std::vector<std::unique_ptr<Transport>> ranks(2);
  testing::RunRanks(2, [&](int rank) {
    const ConnectContext context{.rank = rank,
                                 .size = 2,
                                 .epoch = 1,
                                 .store = store,
                                 .listener = *listeners[static_cast<size_t>(rank)],
                                 .secret = secret,
                                 .topology = topology,
                                 .streams = 1,
                                 .deadline = After(std::chrono::seconds(10))};
    auto transport = ConnectTcpTransport(context, TcpOptions{});
    Check(transport.status());
    ranks[static_cast<size_t>(rank)] = std::move(*transport);
  });
  std::printf("%12s  %12s %10s %10s   %12s %10s\n", "bytes", "one way us", "GB/s", "cpu us",
              "exchange us", "GB/s");
  for (size_t bytes : {size_t{8}, size_t{1} << 10, size_t{1} << 16, size_t{1} << 20,
                       size_t{16} << 20, size_t{64} << 20}) {
    const int rounds = bytes <= (1 << 16) ? 2001 : bytes <= (1 << 20) ? 301 : 21;
    const Timing one_way = Measure(ranks, bytes, false, rounds);
    const Timing exchange = Measure(ranks, bytes, true, rounds);
    const auto rate = [bytes](double seconds) {
      return static_cast<double>(bytes) / seconds / 1e9;
    };
    std::printf("%12zu  %12.1f %10.2f %10.1f   %12.1f %10.2f\n", bytes, one_way.seconds * 1e6,
                rate(one_way.seconds), one_way.cpu_seconds * 1e6, exchange.seconds * 1e6,
                rate(exchange.seconds));
  }
  return 0;
}

}  // namespace
}  // namespace rabit

int main() { return rabit::Main(); }

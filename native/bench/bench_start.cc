// Prints how long the store of a job is at work while its ranks start: each is a thread, with the
// connections to the store that a process has, and does all that a rank asks before it knows the
// others.  The store is that of a job, and this machine's cores are shared by it and by all ranks.
//
//   connect   two connections of each rank and their handshakes, and the wills
//   meet      what every rank is, told to every rank (abi/hosts.h)
//   singly    the same, by each rank asking for each other one: the square of them
//
// Usage: bench_start [largest number of ranks, default 1024] [largest for singly, default 256]
#include <sys/resource.h>

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "abi/hosts.h"
#include "rendezvous/start_watch.h"
#include "rendezvous/store_server.h"

namespace rabit {
namespace {

using Clock = std::chrono::steady_clock;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_start: %s\n", status.message().c_str());
  std::exit(1);
}

// A rank has a connection and a will; each has two ends in this process.
void RaiseFileLimit() {
  rlimit limit{};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

struct Times {
  double connect_s = 0;
  double meet_s = 0;
  double singly_s = 0;
};

Times Start(int size, bool asks_singly) {
  Secret secret;
  secret.key.fill(5);
  const auto server = StoreServer::Start("127.0.0.1:0", secret);
  Check(server.status());
  Clock::time_point phases[4];
  std::barrier phase_ends(size);
  const auto end_phase = [&](int rank, int phase) {
    phase_ends.arrive_and_wait();
    if (rank == 0) phases[phase] = Clock::now();
    phase_ends.arrive_and_wait();
  };
  const auto run = [&](int rank) {
    Options options;
    options.epoch = 1;
    options.rank = rank;
    options.size = size;
    options.host_key = "a-host-of-a-cluster-" + std::to_string(rank / 8) + ".example.com";
    const Deadline deadline = After(std::chrono::seconds(300));
    end_phase(rank, 0);
    auto store = TcpStore::Connect((*server)->address(), secret, rank, deadline);
    Check(store.status());
    StartWatch watch(**store, options.epoch, rank);
    Check(watch.Join(deadline));
    ConnectionPool::Facts facts;
    MemberBook book(watch, facts);
    end_phase(rank, 1);
    const auto hosts = MeetHosts(options, Members(), book, "10.20.30.40:50607", deadline);
    Check(hosts.status());
    end_phase(rank, 2);
    for (int peer = 0; asks_singly && peer < size; ++peer) {
      Check(book.Get("1/host/" + std::to_string(peer), deadline).status());
    }
    end_phase(rank, 3);
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(run, rank);
  for (std::thread& rank : ranks) rank.join();
  const auto seconds = [&](int phase) {
    return std::chrono::duration<double>(phases[phase] - phases[phase - 1]).count();
  };
  return {seconds(1), seconds(2), seconds(3)};
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) {
  const int largest = argc > 1 ? std::atoi(argv[1]) : 1024;
  const int largest_singly = argc > 2 ? std::atoi(argv[2]) : 256;
  rabit::RaiseFileLimit();
  std::printf("| ranks | connect, s | meet, s | singly, s |\n|---|---|---|---|\n");
  for (int size = 16; size <= largest; size *= 4) {
    const bool asks_singly = size <= largest_singly;
    const rabit::Times times = rabit::Start(size, asks_singly);
    std::printf("| %d | %.2f | %.2f | %s |\n", size, times.connect_s, times.meet_s,
                asks_singly ? std::to_string(times.singly_s).substr(0, 5).c_str() : "");
    std::fflush(stdout);
  }
  return 0;
}

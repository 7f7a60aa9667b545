// How long an engine takes to start over connections that are there, against a fresh one.
//
//   bench_membership [ranks] [rounds] [transport] [link_model]
//
// Ranks are threads of one process.  In each round one member is left out, or comes back as another
// process would: the others keep their connections.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "include/rabit_abi.h"

namespace {

constexpr char kSecret[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
using Clock = std::chrono::steady_clock;

struct Setup {
  int ranks;
  int rounds;
  std::string transport;
  std::string link_model;
  int32_t port = 0;
};

void Check(int32_t code) {
  if (code == RABIT_OK) return;
  std::fprintf(stderr, "bench_membership: %s\n", rabit_last_error());
  std::exit(1);
}

template <class Body>
double OnThreads(size_t count, Body body) {
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::string Common(const Setup& setup) {
  return std::string("secret=") + kSecret + "\nstore=127.0.0.1:" + std::to_string(setup.port) +
         "\ntransport=" + setup.transport + "\nlink_model=" + setup.link_model + "\n";
}

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

rabit_pool* OpenPool(const Setup& setup, int member) {
  rabit_pool* pool = nullptr;
  Check(rabit_pool_open((Common(setup) + "member=" + std::to_string(member) + "\n").c_str(), &pool));
  return pool;
}

struct Job {
  std::vector<int> members;
  std::vector<rabit_pool*> pools;
  int epoch = 0;

  double StartAndEnd(const Setup& setup) {
    std::string text;
    for (const int member : members) text += (text.empty() ? "" : ",") + std::to_string(member);
    const std::string options =
        Common(setup) + "members=" + text + "\nepoch=" + std::to_string(++epoch) + "\n";
    std::vector<rabit_engine*> engines(members.size());
    const double ms = OnThreads(members.size(), [&](size_t i) {
      Check(rabit_start_over(pools[i], options.c_str(), &engines[i]));
    });
    OnThreads(members.size(), [&](size_t i) {
      Check(rabit_stop(engines[i], 60'000));
      rabit_free(engines[i]);
    });
    return ms;
  }
};

double FreshStart(const Setup& setup, int epoch) {
  std::vector<rabit_engine*> engines(static_cast<size_t>(setup.ranks));
  const double ms = OnThreads(engines.size(), [&](size_t i) {
    const std::string options = Common(setup) + "rank=" + std::to_string(i) +
                                "\nsize=" + std::to_string(setup.ranks) +
                                "\nepoch=" + std::to_string(epoch) + "\n";
    Check(rabit_start(options.c_str(), &engines[i]));
  });
  OnThreads(engines.size(), [&](size_t i) {
    Check(rabit_stop(engines[i], 60'000));
    rabit_free(engines[i]);
  });
  return ms;
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup{argc > 1 ? std::atoi(argv[1]) : 4, argc > 2 ? std::atoi(argv[2]) : 21,
              argc > 3 ? argv[3] : "auto", argc > 4 ? argv[4] : "fixed"};
  rabit_store* store = nullptr;
  Check(rabit_store_start((std::string("secret=") + kSecret + "\n").c_str(), &store, &setup.port));
  std::vector<double> fresh, same, fewer, exchanged;
  for (int round = 0; round < std::min(setup.rounds, 5); ++round) {
    fresh.push_back(FreshStart(setup, 1000 + round));
  }
  Job job;
  for (int member = 0; member < setup.ranks; ++member) {
    job.members.push_back(member);
    job.pools.push_back(OpenPool(setup, member));
  }
  const double first = job.StartAndEnd(setup);
  for (int round = 0; round < setup.rounds; ++round) {
    same.push_back(job.StartAndEnd(setup));
    rabit_pool_close(job.pools.back());
    job.pools.pop_back();
    job.members.pop_back();
    fewer.push_back(job.StartAndEnd(setup));
    const int next = setup.ranks + round;
    job.members.push_back(next);
    job.pools.push_back(OpenPool(setup, next));
    exchanged.push_back(job.StartAndEnd(setup));
  }
  std::printf("%d ranks, %s, link model %s: fresh %.1f ms, first over a pool %.1f ms; medians of %d: "
              "same members %.1f ms, one fewer %.1f ms, one more that is new %.1f ms\n",
              setup.ranks, setup.transport.c_str(), setup.link_model.c_str(), Median(fresh), first,
              setup.rounds, Median(same), Median(fewer), Median(exchanged));
  for (rabit_pool* pool : job.pools) rabit_pool_close(pool);
  rabit_store_stop(store);
  return 0;
}

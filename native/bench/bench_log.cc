// Measures what the log of operations costs an operation: nanoseconds without a log, where one flag
// is looked at, and with one, where a line is made and a thread of the log's own writes it.
// Usage: bench_log [operations, default 2000000]
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.h"
#include "engine/operation_log.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTurns = 5;

// As an operation that ends does.  The least of some turns.
double NsEach(rabit::OperationLog& log, int operations) {
  rabit::OperationLog::Entry entry{.name = "module.layer1.0.conv1.weight"};
  entry.bytes = 147'456;
  double least = 1e9;
  for (int turn = 0; turn < kTurns; ++turn) {
    const Clock::time_point began = Clock::now();
    for (int i = 0; i < operations; ++i) {
      if (!log.is_active()) continue;
      entry.begin_ns = i;
      entry.end_ns = i + 1'000;
      log.Add(entry);
    }
    const std::chrono::duration<double, std::nano> took = Clock::now() - began;
    least = std::min(least, took.count() / operations);
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  const int operations = argc > 1 ? std::atoi(argv[1]) : 2'000'000;
  const rabit::Logger logger(rabit::LogLevel::kWarning, 0);
  rabit::OperationLog log(0, logger);
  std::printf("no log       %8.2f ns an operation\n", NsEach(log, operations));
  const std::string path = "/tmp/bench_log." + std::to_string(::getpid()) + ".csv";
  const rabit::Status started = log.Start(path);
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", started.message().c_str());
    return 1;
  }
  std::printf("with a log   %8.2f ns an operation\n", NsEach(log, operations / 10));
  log.Stop();
  ::unlink(path.c_str());
  return 0;
}

// rabit_simulate: runs many simulated jobs and reports the seed of one that goes wrong.
//
//   rabit_simulate [--seed=N] [--schedules=N] [--ranks=N] [--tensors=N] [--rounds=N] [--cache=N]
//                  [--plain] [--no-faults] [--verbose]
//
// Schedule i has the seed N + i, so `--seed=that --schedules=1` plays it again.  Numbers that are
// left out come from the seed.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "testing/simulator/simulation.h"

namespace {

using rabit::testing::Simulate;
using rabit::testing::SimulationOptions;
using rabit::testing::SimulationResult;

volatile std::sig_atomic_t has_seed = 0;
char seed_line[64];

// A failed RABIT_CHECK stops the process: say first what was being played.
void OnAbort(int) {
  if (has_seed != 0) std::fputs(seed_line, stderr);
}

bool TakeNumber(std::string_view argument, std::string_view name, uint64_t& value) {
  const std::string begin = "--" + std::string(name) + "=";
  if (!argument.starts_with(begin)) return false;
  char* end = nullptr;
  const std::string digits(argument.substr(begin.size()));
  value = std::strtoull(digits.c_str(), &end, 10);
  if (!digits.empty() && *end == '\0') return true;
  std::fprintf(stderr, "'%s' is no number; correct %s\n", digits.c_str(), begin.c_str());
  std::exit(2);
}

struct Arguments {
  SimulationOptions each;
  uint64_t schedules = 1000;
  bool is_verbose = false;
};

Arguments Parse(int count, char** given) {
  Arguments arguments;
  uint64_t ranks = 0, tensors = 0, rounds = 0, cache = 0;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = given[i];
    if (argument == "--plain") {
      arguments.each.is_plain = true;
    } else if (argument == "--no-faults") {
      arguments.each.has_faults = false;
    } else if (argument == "--verbose") {
      arguments.is_verbose = true;
    } else if (!TakeNumber(argument, "seed", arguments.each.seed) &&
               !TakeNumber(argument, "schedules", arguments.schedules) &&
               !TakeNumber(argument, "ranks", ranks) && !TakeNumber(argument, "tensors", tensors) &&
               !TakeNumber(argument, "rounds", rounds) && !TakeNumber(argument, "cache", cache)) {
      std::fprintf(stderr,
                   "unknown argument '%s': there are --seed, --schedules, --ranks, --tensors, "
                   "--rounds and --cache, each =N, and --plain, --no-faults, --verbose\n",
                   given[i]);
      std::exit(2);
    }
  }
  arguments.each.ranks = static_cast<int>(ranks);
  arguments.each.tensors = static_cast<int>(tensors);
  arguments.each.rounds = static_cast<int>(rounds);
  arguments.each.cache_capacity = cache;
  return arguments;
}

std::string Replay(int count, char** given, uint64_t seed) {
  std::string line = given[0];
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = given[i];
    if (!argument.starts_with("--seed=") && !argument.starts_with("--schedules="))
      line += " " + std::string(argument);
  }
  return line + " --seed=" + std::to_string(seed) + " --schedules=1";
}

}  // namespace

int main(int count, char** given) {
  const Arguments arguments = Parse(count, given);
  std::signal(SIGABRT, OnAbort);
  std::map<std::string, uint64_t> faults;
  SimulationResult total;
  uint64_t failed_jobs = 0;
  const int64_t began_ns = rabit::NowNs();
  for (uint64_t i = 0; i < arguments.schedules; ++i) {
    SimulationOptions options = arguments.each;
    options.seed += i;
    std::snprintf(seed_line, sizeof seed_line, "while playing the seed %llu\n",
                  static_cast<unsigned long long>(options.seed));
    has_seed = 1;
    const SimulationResult result = Simulate(options);
    if (arguments.is_verbose) {
      std::printf("seed %llu: %s, %llu events, %.3f s\n",
                  static_cast<unsigned long long>(options.seed), result.fault.c_str(),
                  static_cast<unsigned long long>(result.events), result.seconds);
    }
    if (!result.violation.empty()) {
      std::printf("seed %llu (%s): %s\nplay it again: %s\n",
                  static_cast<unsigned long long>(options.seed), result.fault.c_str(),
                  result.violation.c_str(), Replay(count, given, options.seed).c_str());
      return 1;
    }
    ++faults[result.fault];
    total.events += result.events;
    total.messages += result.messages;
    total.submitted += result.submitted;
    total.seconds += result.seconds;
    failed_jobs += result.has_failed ? 1 : 0;
  }
  const double seconds = static_cast<double>(rabit::NowNs() - began_ns) * 1e-9;
  std::printf(
      "%llu schedules, no violation: %llu requests, %llu messages, %llu events in %.1f s "
      "(%.0f schedules/s, %.0f s of virtual time)\n",
      static_cast<unsigned long long>(arguments.schedules),
      static_cast<unsigned long long>(total.submitted),
      static_cast<unsigned long long>(total.messages),
      static_cast<unsigned long long>(total.events), seconds,
      static_cast<double>(arguments.schedules) / seconds, total.seconds);
  for (const auto& [fault, times] : faults)
    std::printf("  %8llu  %s\n", static_cast<unsigned long long>(times), fault.c_str());
  std::printf("  %8llu jobs ended with an error that names who is to blame\n",
              static_cast<unsigned long long>(failed_jobs));
  return 0;
}

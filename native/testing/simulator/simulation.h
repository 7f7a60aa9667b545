// Simulation: a whole job, with its faults, from a seed.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "testing/simulator/program.h"
#include "testing/simulator/simulated_rank.h"

namespace rabit::testing {

// What the program of a small job does, it does for each rank anew.
inline constexpr int kManyRanks = 64;

struct SimulationOptions {
  uint64_t seed = 0;
  int ranks = 0;     // 0: from 2 to 8
  int tensors = 0;   // 0: from 1 to 16
  int rounds = 0;    // 0: from 1 to 4
  int backends = 0;  // 0: from 1 to 3, each with lanes of its own
  bool has_faults = true;
  // See Program; and nothing but the delays and the faults is left to chance.  So are all jobs of
  // more than kManyRanks.
  bool is_plain = false;
  size_t cache_capacity = 0;  // 0: one of several
};

struct SimulationResult {
  std::string fault;      // what happened to the job
  std::string violation;  // what went wrong; empty: nothing
  uint64_t events = 0;
  uint64_t messages = 0;
  uint64_t submitted = 0;
  bool has_failed = false;  // a rank has ended with an error, as it should
  double seconds = 0;       // of virtual time
};

// Equal options give equal runs, event by event.  Throughout, every request ends exactly once and
// as its program foresees, lanes run the same buckets under the same numbers, and no rank uses a
// group that it does not know.  In the end every rank is through, or knows whose fault it is that
// it cannot be.
SimulationResult Simulate(const SimulationOptions& options);

}  // namespace rabit::testing

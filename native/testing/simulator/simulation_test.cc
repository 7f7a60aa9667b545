// Simulated jobs of real cores and controllers: a short form of what `make simulate` plays for
// long.
#include "testing/simulator/simulation.h"

#include <set>
#include <string>

#include "testing/sanitizer.h"
#include "testing/test.h"

namespace rabit::testing {
namespace {

constexpr uint64_t kSchedules = 600;

TEST(Simulation, every_rank_is_through_or_knows_whose_fault_it_is) {
  std::set<std::string> faults;
  bool has_failed = false;
  const auto schedules = static_cast<uint64_t>(SimulatedRounds(kSchedules));
  for (uint64_t seed = 0; seed < schedules && !CurrentTestFailed(); ++seed) {
    const SimulationResult result = Simulate({.seed = seed});
    EXPECT_EQ(result.violation, "") << "seed " << seed << " (" << result.fault << ")";
    faults.insert(result.fault);
    has_failed |= result.has_failed;
  }
  EXPECT_EQ(faults.size(), 8u);
  EXPECT_TRUE(has_failed);
}

TEST(Simulation, a_seed_plays_the_same_job_again) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SimulationResult first = Simulate({.seed = seed});
    const SimulationResult again = Simulate({.seed = seed});
    EXPECT_EQ(first.events, again.events) << seed;
    EXPECT_EQ(first.messages, again.messages) << seed;
    EXPECT_EQ(first.seconds, again.seconds) << seed;
  }
}

TEST(Simulation, many_ranks_agree_on_many_tensors) {
  constexpr int kRanks = Repetitions(128);

  const SimulationResult result = Simulate(
      {.ranks = kRanks, .tensors = 200, .rounds = 2, .has_faults = false, .is_plain = true});

  EXPECT_EQ(result.violation, "");
  EXPECT_EQ(result.submitted, kRanks * 200u * 2u);
}

}  // namespace
}  // namespace rabit::testing

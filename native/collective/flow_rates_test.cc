#include "collective/flow_rates.h"

#include <cmath>
#include <vector>

#include "testing/inproc_transport.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

// What each rank of a job of `size` finds.
std::vector<std::vector<Flow>> FoundBy(int size, const std::vector<Flow>& flows) {
  testing::InprocFabric fabric(size);
  std::vector<std::vector<Flow>> found(static_cast<size_t>(size), flows);
  testing::RunRanks(size, [&](int rank) {
    const auto transport = fabric.Connect(rank);
    Scratch scratch;
    const CollectiveCall call{*transport, MakeTag(0, 1), testing::Soon(), scratch};
    EXPECT_OK(MeasureFlows(call, found[static_cast<size_t>(rank)], 0.001));
  });
  return found;
}

TEST(FlowRates, all_ranks_find_the_same_of_pairs_and_of_one_to_all) {
  const auto found = FoundBy(4, {{0, 0, 1}, {0, 1, 0}, {0, 2, 3}, {1, 2, 0}, {1, 2, 1}, {1, 2, 3}});

  for (const auto& flows : found) {
    for (size_t i = 0; i < flows.size(); ++i) {
      EXPECT_TRUE(flows[i].bytes_per_second > 0 && std::isfinite(flows[i].bytes_per_second));
      EXPECT_EQ(flows[i].bytes_per_second, found[0][i].bytes_per_second);
      EXPECT_EQ(flows[i].bytes, found[0][i].bytes);
    }
  }
}

TEST(FlowRates, flows_that_cannot_be_are_refused) {
  testing::InprocFabric fabric(1);
  const auto transport = fabric.Connect(0);
  Scratch scratch;
  const CollectiveCall call{*transport, MakeTag(0, 1), testing::Soon(), scratch};
  for (const Flow& flow : {Flow{0, 0, 0}, Flow{0, 0, 1}, Flow{0, -1, 0}, Flow{-1, 0, 0}}) {
    std::vector<Flow> flows = {flow};
    EXPECT_EQ(MeasureFlows(call, flows).code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace rabit

// What tests of the negotiation share: hosts of ranks, and what all ranks of a ControllerJob were
// told.
#pragma once

#include <vector>

#include "testing/simulator/controller_job.h"
#include "testing/test.h"

namespace rabit::testing {

// Hosts of four ranks each, in a tree of four children.
inline RankTree Hosts(int size) {
  Topology topology;
  for (int rank = 0; rank < size; ++rank) topology.host_of.push_back(rank / 4);
  return RankTree::Over(topology, 4);
}

// Delivers what is on its way; every rank has then been told the same one tensor, which returns.
inline ReadyTensor Agree(ControllerJob& job) {
  EXPECT_OK(job.Deliver());
  ReadyTensor first;
  for (int rank = 0; rank < job.size(); ++rank) {
    std::vector<ReadyTensor> told;
    for (const Agreement& each : job.agreed(rank)) {
      EXPECT_TRUE(each.rejected.empty());
      told.insert(told.end(), each.ready.begin(), each.ready.end());
    }
    job.agreed(rank).clear();
    EXPECT_EQ(told.size(), 1u) << rank;
    if (told.empty()) continue;
    if (rank == 0) first = told[0];
    EXPECT_TRUE(told[0].extents == first.extents && told[0].joined == first.joined &&
                told[0].signature == first.signature)
        << rank;
  }
  return first;
}

}  // namespace rabit::testing

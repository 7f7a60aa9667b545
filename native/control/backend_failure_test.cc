// A backend that ranks give up: one agreement says so, with one reason.
#include <string>
#include <vector>

#include "testing/simulator/controller_job.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::ControllerJob;

std::vector<BackendFailure> FailuresOn(ControllerJob& job, int rank) {
  std::vector<BackendFailure> failures;
  for (const Agreement& agreement : job.agreed(rank)) {
    if (agreement.failed_backend) failures.push_back(*agreement.failed_backend);
  }
  return failures;
}

TEST(FailedBackends, ranks_that_notice_it_one_by_one_hear_the_same_once) {
  for (const int fan_out : {5, 1}) {
    const RankTree tree = RankTree::Over({std::vector<int>(5, 0)}, fan_out);
    ControllerJob job(tree);
    job.FailBackend(3, {2, PeerLost(6, "server 1 is lost")});
    job.FailBackend(3, {1, PeerLost(3, "a link is broken")});
    ASSERT_OK(job.Deliver());
    job.FailBackend(0, {2, TimedOut("later")});
    ASSERT_OK(job.Deliver());

    for (int rank = 0; rank < 5; ++rank) {
      const std::vector<BackendFailure> failures = FailuresOn(job, rank);
      ASSERT_EQ(failures.size(), 2u);
      EXPECT_EQ(failures[0].backend, 2);
      EXPECT_EQ(failures[0].why.message(), "server 1 is lost");
      EXPECT_EQ(failures[0].why.culprit(), 6);
      EXPECT_EQ(failures[1].backend, 1);
    }
  }
}

}  // namespace
}  // namespace rabit

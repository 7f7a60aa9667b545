#include "testing/inproc_channel.h"

#include "testing/channel_conformance.h"

namespace rabit {
namespace {

class HubFixture {
 public:
  explicit HubFixture(int size) : hub_(size) {}
  std::unique_ptr<Channel> Connect(int rank) { return hub_.Connect(rank); }
  void Kill(int rank) { hub_.Kill(rank, "was killed"); }

 private:
  testing::InprocHub hub_;
};

RABIT_CHANNEL_SUITE(InprocChannel, HubFixture);

TEST(InprocChannel, the_loss_says_how_the_rank_died) {
  testing::InprocHub hub(2);
  std::unique_ptr<Channel> root = hub.Connect(0);
  hub.Kill(1, "was killed by signal 9");

  const Status loss = testing::NextLoss(*root);
  EXPECT_EQ(loss.message(), "rank 1 was killed by signal 9");
  EXPECT_EQ(loss.culprit(), 1);
}

}  // namespace
}  // namespace rabit

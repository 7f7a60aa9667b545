#include "control/channel_controller.h"

#include <memory>

#include "testing/controller_conformance.h"
#include "testing/inproc_channel.h"
#include "testing/test.h"

namespace rabit {
namespace {

class InprocControllers {
 public:
  InprocControllers(int size, const ControllerOptions& options)
      : InprocControllers(RankTree::Star(size), options) {}
  InprocControllers(RankTree tree, const ControllerOptions& options)
      : tree_(std::move(tree)), options_(options), hub_(tree_) {}

  std::unique_ptr<Controller> Connect(int rank) {
    if (tree_.size() == 1) return MakeLocalController(options_, kSteadyClock);
    return MakeController(hub_.Connect(rank), tree_, options_, kSteadyClock);
  }
  void Kill(int rank) { hub_.Kill(rank, "was killed by signal 9"); }

 private:
  const RankTree tree_;
  const ControllerOptions options_;
  testing::InprocHub hub_;
};

RABIT_CONTROLLER_SUITE(ChannelController, InprocControllers);

// Of 3 ranks one is between the others, of 5 three are.
class ControllersInAChain : public InprocControllers {
 public:
  ControllersInAChain(int size, const ControllerOptions& options)
      : InprocControllers(RankTree::Over({std::vector<int>(static_cast<size_t>(size), 0)}, 1),
                          options) {}
};

RABIT_CONTROLLER_SUITE(TreeController, ControllersInAChain);

TEST(LocalController, agrees_at_once_and_rejects_what_is_wrong) {
  const std::unique_ptr<Controller> controller = MakeLocalController({}, kSteadyClock);
  Announcement announcement;
  announcement.ready.push_back(testing::FloatEntry("a", {2}));
  announcement.ready.push_back(testing::FloatEntry("b", {2}));
  announcement.ready[1].signature.group = 9;
  announcement.ready.push_back(testing::FloatEntry("", {2}));
  announcement.ready.push_back(testing::FloatEntry("c", {-2}));

  ASSERT_OK(controller->Announce(announcement));

  std::vector<std::string> outcomes = testing::NextOutcomes(*controller, 4);
  std::sort(outcomes.begin(), outcomes.end());
  EXPECT_TRUE((outcomes == std::vector<std::string>{"!", "!b", "!c", "a"}));
  auto nothing = controller->Await(After(std::chrono::milliseconds(1)));
  ASSERT_OK(nothing);
  EXPECT_FALSE(nothing->has_value());
  JsonWriter json;
  controller->WriteStatistics(json);
  const std::string text = json.Take();
  EXPECT_TRUE(text.find("\"cycles\":1,\"announced\":4") != std::string::npos) << text;
}

TEST(ChannelController, a_rank_of_another_wire_version_ends_the_job_by_name) {
  testing::InprocHub hub(2);
  const std::unique_ptr<Controller> root =
      MakeController(hub.Connect(0), RankTree::Star(2), {}, kSteadyClock);
  const std::unique_ptr<Channel> stranger = hub.Connect(1);
  const std::byte message[] = {std::byte{200}, std::byte{1}, std::byte{0}};

  ASSERT_OK(stranger->Send(0, message));

  const Status why = testing::NextFailure(*root);
  EXPECT_EQ(why.code(), Code::kUnsupported);
  EXPECT_EQ(why.culprit(), 1);
  EXPECT_TRUE(why.message().find("rank 1: it speaks version 200") != std::string::npos) << why;
}

TEST(ChannelController, a_stop_that_rank_0_told_before_it_left_is_heard) {
  testing::InprocHub hub(2);
  std::unique_ptr<Controller> root =
      MakeController(hub.Connect(0), RankTree::Star(2), {}, kSteadyClock);
  const std::unique_ptr<Controller> worker =
      MakeController(hub.Connect(1), RankTree::Star(2), {}, kSteadyClock);
  Announcement stop;
  stop.wants_stop = true;
  ASSERT_OK(worker->Announce(stop));
  ASSERT_OK(root->Announce(stop));
  auto agreed = root->Await(After(std::chrono::seconds(10)));
  ASSERT_OK(agreed);
  ASSERT_TRUE(agreed->has_value() && (*agreed)->stop);
  root.reset();

  stop.buckets_done = 1;
  ASSERT_OK(worker->Announce(stop));  // and nobody is there to hear it
  const auto heard = worker->Await(After(std::chrono::seconds(1)));

  ASSERT_OK(heard);
  ASSERT_TRUE(heard->has_value());
  EXPECT_TRUE((*heard)->stop);
}

}  // namespace
}  // namespace rabit

#include "engine/submission_queue.h"

#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

struct Woken {
  int times = 0;
  SubmissionQueue queue{[this] { ++times; }};

  void Push() { ASSERT_OK(queue.Push(std::vector<std::shared_ptr<PendingRequest>>(1))); }
};

TEST(SubmissionQueue, only_the_first_of_several_wakes_the_consumer) {
  Woken woken;

  woken.Push();
  woken.Push();
  EXPECT_EQ(woken.times, 1);
  EXPECT_EQ(woken.queue.TakeAll().size(), 2u);

  woken.Push();
  EXPECT_EQ(woken.times, 2);
}

TEST(SubmissionQueue, nobody_wakes_a_consumer_that_naps) {
  Woken woken;
  ASSERT_TRUE(woken.queue.StartNap());

  woken.Push();
  EXPECT_EQ(woken.times, 0);
  EXPECT_TRUE(woken.queue.EndNap());
  EXPECT_EQ(woken.queue.TakeAll().size(), 1u);

  woken.Push();
  EXPECT_EQ(woken.times, 1);
}

TEST(SubmissionQueue, who_waits_ends_a_nap_once) {
  Woken woken;
  ASSERT_TRUE(woken.queue.StartNap());
  woken.queue.Hurry();
  EXPECT_EQ(woken.times, 0);  // there is nothing to hurry for

  woken.Push();
  woken.queue.Hurry();
  woken.queue.Hurry();
  EXPECT_EQ(woken.times, 1);

  EXPECT_TRUE(woken.queue.EndNap());
  (void)woken.queue.TakeAll();
  woken.queue.Hurry();
  EXPECT_EQ(woken.times, 1);
}

TEST(SubmissionQueue, a_consumer_with_something_to_take_does_not_nap) {
  Woken woken;
  woken.Push();

  EXPECT_FALSE(woken.queue.StartNap());
  EXPECT_EQ(woken.queue.TakeAll().size(), 1u);
  EXPECT_TRUE(woken.queue.StartNap());
  EXPECT_FALSE(woken.queue.EndNap());
}

}  // namespace
}  // namespace rabit

#include "route/carried_limit.h"

#include "testing/test.h"

namespace rabit {
namespace {

constexpr int64_t kMost = 64 << 10;

// As a start measures them: ranks of one host that have a core each, over loopback.
LinkModel Loopback() {
  LinkModel link;
  link.latency_us = 20;
  link.message_us = 8;
  link.bytes_per_us = 3500;
  return link;
}

LinkModel Gigabit() {
  LinkModel link;
  link.latency_us = 60;
  link.bytes_per_us = 117;
  return link;
}

TEST(CarriedLimit, is_large_where_messages_cost_more_than_bytes) {
  EXPECT_GE(CarriedLimit(Loopback(), 2, kMost), 4 << 10);

  LinkModel crowded = Loopback();
  crowded.is_crowded = true;
  crowded.latency_us = crowded.fan_us = 60;
  crowded.bytes_per_us = 1300;
  EXPECT_GE(CarriedLimit(crowded, 4, kMost), 16 << 10);
}

TEST(CarriedLimit, is_small_where_all_goes_through_one_slow_link) {
  EXPECT_LE(CarriedLimit(Gigabit(), 4, kMost), 2 << 10);
  EXPECT_LE(CarriedLimit(Gigabit(), 16, kMost), 1 << 10);
  EXPECT_LT(CarriedLimit(Gigabit(), 8, kMost), CarriedLimit(Loopback(), 8, kMost));
}

TEST(CarriedLimit, grows_with_the_latency) {
  LinkModel far = Gigabit();
  far.latency_us = 20'000;
  EXPECT_EQ(CarriedLimit(far, 4, kMost), kMost);
}

TEST(CarriedLimit, is_some_bytes_on_any_link_and_no_more_than_allowed) {
  LinkModel slow = Gigabit();
  slow.latency_us = 0.1;
  slow.bytes_per_us = 1;
  EXPECT_EQ(CarriedLimit(slow, 4, kMost), 1 << 10);
  EXPECT_EQ(CarriedLimit(slow, 64, kMost), 256);
  EXPECT_EQ(CarriedLimit(slow, 4, 100), 100);
  EXPECT_EQ(CarriedLimit(Loopback(), 2, 3000), 3000);
  EXPECT_EQ(CarriedLimit(Loopback(), 2, 0), 0);
}

}  // namespace
}  // namespace rabit

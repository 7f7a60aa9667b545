#include "base/processors.h"

#include <sched.h>

#include "testing/test.h"

namespace rabit {
namespace {

Processors On(std::string_view text) {
  auto parsed = ParseProcessors(text);
  EXPECT_OK(parsed);
  return parsed.ok() ? *parsed : Processors();
}

HostCores Share(std::vector<std::string_view> texts) {
  std::vector<Processors> ranks;
  for (const std::string_view text : texts) ranks.push_back(On(text));
  return ShareCores(ranks);
}

TEST(Processors, are_those_of_the_affinity_mask) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  int last = 0;
  for (int each = 0; each < CPU_SETSIZE; ++each) {
    if (CPU_ISSET(each, &before)) last = each;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const Processors narrowed = FindProcessors();
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);

  EXPECT_EQ(narrowed, Processors{last});
  EXPECT_EQ(static_cast<int>(FindProcessors().size()), CPU_COUNT(&before));
}

TEST(Processors, text_reads_back) {
  for (const std::string_view text : {"0", "0-3", "0-3,8", "5,7,9-11", "0-65535"}) {
    EXPECT_EQ(ToText(On(text)), text);
  }
  EXPECT_EQ(On("0-3,8"), (Processors{0, 1, 2, 3, 8}));
}

TEST(Processors, other_text_is_refused) {
  for (const std::string_view text :
       {"", "a", "3-1", "0-", "-1", "0,0", "2,1", "0-65536", "0,", "0;", "0 1"}) {
    EXPECT_EQ(ParseProcessors(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(HostCores, ranks_that_may_run_anywhere_share_all) {
  const HostCores cores = Share({"0-7", "0-7", "0-7"});
  EXPECT_EQ(cores.ranks, 3);
  EXPECT_EQ(cores.total, 8);
  EXPECT_EQ(cores.each, 2);
  EXPECT_EQ(Share({"0-1", "0-1", "0-1"}).each, 0);
  EXPECT_EQ(Share({"0-1", "0-1", "0-1"}).ranks_per_core(), 1.5);
}

TEST(HostCores, ranks_bound_to_one_processor_each_have_their_own) {
  const HostCores cores = Share({"0", "1", "2", "3"});
  EXPECT_EQ(cores.total, 4);
  EXPECT_EQ(cores.each, 1);
}

TEST(HostCores, are_shared_where_a_spinning_thread_may_be_in_the_way) {
  EXPECT_FALSE(Share({"0-1", "0-1"}).are_shared());
  EXPECT_TRUE(Share({"0-1", "0-1", "0-1"}).are_shared());
  EXPECT_TRUE(Share({"0", "1"}).are_shared());
}

TEST(HostCores, ranks_bound_to_the_same_processor_share_it) {
  const HostCores cores = Share({"2", "2"});
  EXPECT_EQ(cores.total, 1);
  EXPECT_EQ(cores.each, 0);
  EXPECT_EQ(Share({"0-7", "2", "2"}).each, 0);
}

TEST(HostCores, whoever_is_free_makes_room_for_who_is_bound) {
  EXPECT_EQ(Share({"0-1", "0"}).each, 1);
  EXPECT_EQ(Share({"0-2", "0-1", "0"}).each, 1);
  EXPECT_EQ(Share({"0-3", "0-1"}).each, 2);
}

TEST(HostCores, many_ranks_are_counted_at_once) {
  const std::vector<std::string_view> ranks(512, "0-1023");
  EXPECT_EQ(Share(ranks).each, 2);
}

}  // namespace
}  // namespace rabit

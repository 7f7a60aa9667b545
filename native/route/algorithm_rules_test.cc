#include "route/algorithm_rules.h"

#include "testing/test.h"

namespace rabit {
namespace {

void ExpectWrong(std::string_view text, const std::string& position, const std::string& why) {
  const auto rules = AlgorithmRules::Parse(text, false);
  ASSERT_FALSE(rules.ok());
  const std::string message = rules.status().message();
  EXPECT_TRUE(message.find("position " + position + ":") != std::string::npos) << message;
  EXPECT_TRUE(message.find(why) != std::string::npos) << message;
}

TEST(AlgorithmRules, the_first_rule_that_fits_is_used) {
  const auto rules = AlgorithmRules::Parse(
      "allreduce:0-1K@tree;allreduce:512-2M@ring;allgather:0-inf@direct;double_tree", false);
  ASSERT_OK(rules);
  EXPECT_EQ(rules->Find(Kind::kAllreduce, 1023), "tree");
  EXPECT_EQ(rules->Find(Kind::kAllreduce, 1024), "ring");
  EXPECT_EQ(rules->Find(Kind::kAllreduce, 2 << 20), "double_tree");
  EXPECT_EQ(rules->Find(Kind::kAllgather, 5), "direct");
  EXPECT_EQ(rules->Find(Kind::kBroadcast, 5), "");
}

TEST(AlgorithmRules, mistakes_name_the_position_and_what_is_known) {
  ExpectWrong("rnig", "1", "unknown allreduce algorithm 'rnig'; known: direct, gather_all, ring");
  ExpectWrong("allreduce:0-64K@rnig", "17", "'rnig'; known: direct");
  ExpectWrong("ring;allgahter:0-1@ring", "6",
              "'allgahter'; known: allreduce, allgather, broadcast, reducescatter");
  ExpectWrong("allreduce@ring", "10", "':' is missing");
  ExpectWrong("allreduce:0@ring", "12", "'-' is missing");
  ExpectWrong("allreduce:0-64K", "16", "'@' is missing");
  ExpectWrong("allreduce:0-64KB@ring", "13", "'64KB' is not a number of bytes");
  ExpectWrong("allreduce:-1-4@ring", "11", "'' is not a number of bytes");
  ExpectWrong("allreduce:0-99999999999G@ring", "13", "is not a number of bytes");
  ExpectWrong("allreduce:8K-4K@ring", "11", "the range is empty");
  ExpectWrong("ring;", "6", "unknown allreduce algorithm ''");
  ExpectWrong("broadcast:0-inf@ring", "17", "known: binomial, chain");
}

TEST(AlgorithmRules, deterministic_jobs_refuse_other_orders) {
  const auto rules = AlgorithmRules::Parse("direct;allreduce:0-1K@ring", true);
  ASSERT_FALSE(rules.ok());
  EXPECT_TRUE(rules.status().message().find("position 23: 'ring' does not sum in rank order") !=
              std::string::npos)
      << rules.status();
  EXPECT_OK(AlgorithmRules::Parse("gather_all", true));
}

}  // namespace
}  // namespace rabit

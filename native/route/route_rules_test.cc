#include "route/route_rules.h"

#include <string>
#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

const std::vector<std::string> kBoth = {"builtin", "mpi"};
const std::vector<std::string> kServers = {"builtin", "ps"};
const std::vector<std::string> kOne = {"builtin"};

// "backend/algorithm", or "" where no rule fits.
std::string Found(const RouteRules& rules, Kind kind, int64_t bytes,
                  DType dtype = DType::kFloat32) {
  Work work;
  work.kind = kind;
  work.dtype = dtype;
  const RouteRule* const rule = rules.Find(work, bytes);
  return rule == nullptr ? "" : std::to_string(rule->backend) + "/" + rule->algorithm;
}

void ExpectWrong(std::string_view text, const std::vector<std::string>& backends,
                 const std::string& position, const std::string& why) {
  const auto rules = RouteRules::Parse("RABIT_ROUTE", text, {backends, false});
  ASSERT_FALSE(rules.ok());
  const std::string message = rules.status().message();
  EXPECT_TRUE(message.find("RABIT_ROUTE '") != std::string::npos) << message;
  EXPECT_TRUE(message.find("position " + position + ":") != std::string::npos) << message;
  EXPECT_TRUE(message.find(why) != std::string::npos) << message;
}

TEST(RouteRules, the_first_rule_that_fits_kind_type_and_size_counts) {
  const auto rules = RouteRules::Parse(
      "route",
      "alltoall:*:mpi;allreduce.float16:builtin;allreduce:<64K:builtin/gather_all;"
      "allreduce:1M-2M:mpi/ring;allreduce:>=1G:mpi;barrier:builtin",
      {kBoth, false});
  ASSERT_OK(rules);
  EXPECT_EQ(Found(*rules, Kind::kAlltoall, 0), "1/");
  EXPECT_EQ(Found(*rules, Kind::kAllreduce, 1, DType::kFloat16), "0/");
  EXPECT_EQ(Found(*rules, Kind::kAllreduce, (64 << 10) - 1), "0/gather_all");
  EXPECT_EQ(Found(*rules, Kind::kAllreduce, 64 << 10), "");
  EXPECT_EQ(Found(*rules, Kind::kAllreduce, 1 << 20), "1/ring");
  EXPECT_EQ(Found(*rules, Kind::kAllreduce, 2 << 20), "");
  EXPECT_EQ(Found(*rules, Kind::kAllreduce, 1 << 30), "1/");
  EXPECT_EQ(Found(*rules, Kind::kBroadcast, 1), "");
  EXPECT_EQ(Found(*rules, Kind::kBarrier, 0), "0/");
  EXPECT_TRUE(rules->NameAlgorithmOf(1));
}

TEST(RouteRules, a_star_is_every_kind_and_a_message_has_two_ends) {
  const auto rules = RouteRules::Parse("route", "send:mpi;*:builtin", {kBoth, false});
  ASSERT_OK(rules);
  EXPECT_EQ(Found(*rules, Kind::kSend, 9), "1/");
  EXPECT_EQ(Found(*rules, Kind::kRecv, 9), "1/");
  EXPECT_EQ(Found(*rules, Kind::kGather, 9), "0/");
  EXPECT_FALSE(rules->NameAlgorithmOf(1));
}

TEST(RouteRules, calls_that_name_a_backend_take_rules_of_that_alone) {
  const auto rules =
      RouteRules::Parse("route", "allreduce:mpi/library;allreduce:builtin/tree", {kBoth, false});
  ASSERT_OK(rules);
  Work work;
  work.backend = 0;
  EXPECT_EQ(rules->Find(work, 8)->algorithm, "tree");
  work.kind = Kind::kAllgather;
  EXPECT_TRUE(rules->Find(work, 8) == nullptr);
}

TEST(RouteRules, mistakes_name_the_position_and_what_is_known) {
  ExpectWrong("alltoal:mpi", kBoth, "1", "unknown collective 'alltoal'; known: *, allreduce");
  ExpectWrong("recv:mpi", kBoth, "1", "unknown collective 'recv'");
  ExpectWrong("allreduce", kBoth, "10", "':' and a backend are missing");
  ExpectWrong("allreduce.float23:mpi", kBoth, "11", "unknown type 'float23'; known: uint8");
  ExpectWrong("alltoall:>1K:mpi", kBoth, "10", "'>1K' are no sizes");
  ExpectWrong("alltoall:<1Q:mpi", kBoth, "11", "'1Q' is not a number of bytes");
  ExpectWrong("alltoall:8K-4K:mpi", kBoth, "10", "no size is in '8K-4K'");
  ExpectWrong("alltoall:<0:mpi", kBoth, "10", "no size is in '<0'");
  ExpectWrong("alltoall:mpi;", kBoth, "14", "unknown collective ''");
  ExpectWrong("alltoall:mpl", kBoth, "10",
              "there is no backend 'mpl'; known: builtin, mpi, nccl, ps");
  ExpectWrong("alltoall:mpi", kOne, "10",
              "this job runs without backend 'mpi': it has builtin; add it with "
              "RABIT_BACKEND=builtin,mpi");
  ExpectWrong("allreduce:builtin/rnig", kOne, "19", "unknown allreduce algorithm 'rnig'; known: ");
  ExpectWrong("allreduce:builtin/library", kBoth, "19", "unknown allreduce algorithm 'library'");
  ExpectWrong("alltoall:builtin/ring", kOne, "18", "alltoall has no choice of algorithms");
  ExpectWrong("alltoall:mpi/ring", kBoth, "14",
              "unknown alltoall algorithm 'ring'; known: library");
  ExpectWrong("allreduce:ps", kBoth, "11",
              "this job runs without backend 'ps'; start summation servers with "
              "'rabitrun -s 2', or add it with RABIT_BACKEND=builtin,mpi,ps");
  ExpectWrong("allreduce:ps/ring", kServers, "13", "backend 'ps' has no choice of algorithms");
}

TEST(RouteRules, nccl_runs_alone_or_inside_the_hosts) {
  const std::vector<std::string> backends = {"builtin", "nccl"};
  const auto rules = RouteRules::Parse(
      "route", "allreduce:>=1M:nccl/hierarchical;broadcast:nccl/library", {backends, false});
  ASSERT_OK(rules);
  EXPECT_EQ(Found(*rules, Kind::kAllreduce, 1 << 20), "1/hierarchical");
  EXPECT_EQ(Found(*rules, Kind::kAllreduce, 1 << 10), "");
  EXPECT_EQ(Found(*rules, Kind::kBroadcast, 9), "1/library");
  ExpectWrong("allreduce:nccl/ring", backends, "16",
              "unknown allreduce algorithm 'ring'; known: hierarchical, library");
  ExpectWrong("broadcast:nccl/hierarchical", backends, "16",
              "unknown broadcast algorithm 'hierarchical'; known: library");
  ExpectWrong("allreduce:nccl/hierarchical", kOne, "11", "this job runs without backend 'nccl'");
}

TEST(RouteRules, deterministic_jobs_refuse_other_orders) {
  const auto rules = RouteRules::Parse("route", "allreduce:builtin/ring", {kBoth, true});
  ASSERT_FALSE(rules.ok());
  EXPECT_TRUE(rules.status().message().find("'ring' does not sum in rank order") !=
              std::string::npos)
      << rules.status();
  EXPECT_OK(RouteRules::Parse(
      "route", "allreduce:builtin/direct;allgather:builtin/ring;allreduce:mpi/library",
      {kBoth, true}));
}

}  // namespace
}  // namespace rabit

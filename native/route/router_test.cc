#include "route/router.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/tree_plan.h"
#include "collective/allreduce.h"
#include "testing/test.h"

namespace rabit {
namespace {

constexpr int32_t kMpi = 1, kMessages = 2, kAcross = 3;

// Four ranks.
RouterOptions On(std::vector<int> host_of) {
  RouterOptions options;
  options.topology = Topology::Alike(std::move(host_of), Processors{0, 1});
  return options;
}

RouterOptions Ruled(std::string_view rules) {
  RouterOptions options = On({0, 0, 0, 0});
  Result<AlgorithmRules> parsed = AlgorithmRules::Parse(rules, false);
  EXPECT_OK(parsed);
  options.rules = std::move(parsed).value();
  return options;
}

RouteRules Parsed(std::string_view text, bool has_mpi) {
  std::vector<std::string> names = {"builtin"};
  if (has_mpi) names.emplace_back("mpi");
  Result<RouteRules> parsed = RouteRules::Parse("route", text, {names, false});
  EXPECT_OK(parsed);
  return std::move(parsed).value();
}

// An MPI job of two hosts with two ranks each.
RouterOptions Mpi(MpiCollectives collectives, bool shares_hosts) {
  RouterOptions options = On({0, 0, 1, 1});
  MpiRows& rows = options.mpi.emplace();
  rows.library = kMpi;
  rows.messages = kMessages;
  rows.across = shares_hosts ? kAcross : -1;
  rows.collectives = collectives;
  rows.is_default = true;
  rows.shares_hosts = shares_hosts;
  rows.dtypes.fill(true);
  rows.ops.fill(true);
  return options;
}

Work Of(Kind kind, DType dtype = DType::kFloat32, ReduceOp op = ReduceOp::kSum) {
  Work work;
  work.kind = kind;
  work.dtype = dtype;
  work.op = op;
  return work;
}

Group Ranks(std::vector<int> ranks) {
  Group group;
  group.id = 7;
  group.my_index = 0;
  group.ranks = std::move(ranks);
  return group;
}

Group World(int size = 4) {
  Group group;
  group.my_index = 0;
  for (int rank = 0; rank < size; ++rank) group.ranks.push_back(rank);
  return group;
}

// "executor algorithm row"
std::string Text(const Route& route) {
  return std::to_string(route.executor) + " " + std::string(route.algorithm) + " " +
         std::string(route.row);
}

// What is left of a route when its router is gone.
struct Taken {
  int32_t executor = 0;
  BackendId backend = 0;
  std::string row;
  std::string text;
};

std::string Text(const Taken& taken) { return taken.text; }

Taken Take(RouterOptions options, const Work& work, Load load, const Group& group = World()) {
  const Router router(std::move(options));
  const Result<Route> route = router.Of(work, load, group);
  EXPECT_OK(route);
  return {route->executor, route->backend, std::string(route->row), Text(*route)};
}

std::string Chosen(RouterOptions options, DType dtype, int64_t bytes) {
  return Text(Take(std::move(options), Of(Kind::kAllreduce, dtype), {bytes}));
}

TEST(Router, rules_of_the_user_come_first_and_choose_by_size) {
  const char* const rules = "allreduce:0-64K@recursive_doubling;allreduce:64K-inf@tree";
  const Router router(Ruled(rules));
  const Group world = World();

  EXPECT_EQ(Text(*router.Of(Of(Kind::kAllreduce), {(64 << 10) - 4}, world)),
            "0 recursive_doubling user_rule");
  EXPECT_EQ(Text(*router.Of(Of(Kind::kAllreduce), {64 << 10}, world)), "0 tree user_rule");
  EXPECT_EQ(Text(*router.Of(Of(Kind::kBroadcast), {64}, world)), "0 binomial size");
}

TEST(Router, several_hosts_with_several_ranks_use_the_hierarchy) {
  constexpr int64_t kLarge = 1 << 20;
  EXPECT_EQ(Chosen(On({0, 0, 1, 1}), DType::kFloat32, kLarge), "0 hierarchical hosts");
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1, 2, 3}, {0, 0, 0, 0}}) {
    EXPECT_NE(Chosen(On(host_of), DType::kFloat32, kLarge), "0 hierarchical hosts");
  }
  EXPECT_EQ(Chosen(On({0, 0, 1, 1}), DType::kFloat16, kLarge), "0 direct link_model");
  RouterOptions deterministic = On({0, 0, 1, 1});
  deterministic.is_deterministic = true;
  EXPECT_EQ(Chosen(deterministic, DType::kFloat32, kLarge), "0 direct link_model");
}

TEST(Router, hosts_of_one_rank_each_form_a_ring_for_all_but_small_tensors) {
  const RouterOptions options = On({0, 1, 2, 3});
  EXPECT_EQ(Chosen(options, DType::kFloat32, 64 << 10), "0 ring hosts");
  EXPECT_NE(Chosen(On({0, 0, 0, 0}), DType::kFloat32, 64 << 10), "0 ring hosts");
  EXPECT_NE(Chosen(options, DType::kFloat32, 32 << 10), "0 ring hosts");
  EXPECT_NE(Chosen(options, DType::kBfloat16, 1 << 20), "0 ring hosts");  // rounds at every step
  RouterOptions deterministic = options;
  deterministic.is_deterministic = true;
  EXPECT_EQ(Chosen(deterministic, DType::kFloat32, 64 << 10), "0 direct link_model");
  EXPECT_EQ(Text(Take(options, Of(Kind::kReduceScatter), {1 << 20})), "0 ring hosts");
  EXPECT_EQ(Text(Take(options, Of(Kind::kAllgather), {1 << 20})), "0 ring hosts");
}

TEST(Router, ranks_that_share_the_cores_of_a_host_send_whole_parts) {
  RouterOptions options = On({0, 0, 0, 0});
  const auto chosen = [&](Kind kind) { return Text(Take(options, Of(kind), {4 << 20})); };
  EXPECT_EQ(chosen(Kind::kBroadcast), "0 chain size");
  EXPECT_EQ(chosen(Kind::kAllgather), "0 ring size");
  options.links.slowest.is_crowded = true;
  EXPECT_EQ(chosen(Kind::kBroadcast), "0 binomial cores");
  EXPECT_EQ(chosen(Kind::kAllgather), "0 direct cores");
  options.topology = On({0, 0, 1, 1}).topology;  // the links between hosts are not shared
  EXPECT_EQ(chosen(Kind::kBroadcast), "0 chain size");
  EXPECT_EQ(chosen(Kind::kAllgather), "0 ring size");
  options = Ruled("allgather:0-inf@ring;broadcast:0-inf@chain");
  options.links.slowest.is_crowded = true;
  EXPECT_EQ(chosen(Kind::kBroadcast), "0 chain user_rule");
  EXPECT_EQ(chosen(Kind::kAllgather), "0 ring user_rule");
}

TEST(Router, few_bytes_are_joined_where_exchanges_are_copies_in_memory) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  constexpr int64_t kBytes = 16 << 20;
  const auto joined = [&](const RouterOptions& options, const Group& group) {
    const Router router(options);
    const Result<Route> route = router.Of(Of(Kind::kAllreduce), {kBytes}, group);
    EXPECT_OK(route);
    return router.JoinedBytesMax(*route, group);
  };
  RouterOptions options = On({0, 0, 0, 0});
  EXPECT_EQ(joined(options, World()), kNoLimit);
  options.shares_memory = true;
  EXPECT_EQ(joined(options, World()), 2 << 20);
  RouterOptions two_hosts = On({0, 0, 1, 1});
  two_hosts.shares_memory = true;
  EXPECT_EQ(joined(two_hosts, World()), kNoLimit);
  EXPECT_EQ(joined(two_hosts, Ranks({0, 1})), 2 << 20);
  // Who has chosen by size has meant all that is joined.
  RouterOptions ruled = Ruled("allreduce:0-inf@ring");
  ruled.topology = options.topology;
  ruled.shares_memory = true;
  EXPECT_EQ(joined(ruled, World()), kNoLimit);
}

TEST(Router, deterministic_jobs_sum_in_rank_order_at_every_size) {
  RouterOptions options = On({0, 0, 0, 0});
  options.is_deterministic = true;
  const Router router(options);
  for (int64_t bytes = 4; bytes <= 1 << 28; bytes *= 4) {
    const Route route = *router.Of(Of(Kind::kAllreduce), {bytes}, World());
    EXPECT_TRUE(FindAllreduceAlgorithm(route.algorithm)->is_rank_ordered) << route.algorithm;
  }
}

TEST(Router, rules_and_determinism_win_over_what_was_measured) {
  RouterOptions ruled = Ruled("tree");
  ruled.links.slowest.is_measured = true;
  ruled.links.slowest.latency_us = 1000;
  EXPECT_EQ(Chosen(ruled, DType::kFloat32, 1 << 20), "0 tree user_rule");
}

// An average of a narrow type, and a sum of one that is scaled, are rounded once.
TEST(Router, rules_for_algorithms_of_several_steps_give_means_of_narrow_types_to_direct) {
  RouterOptions by_route = On({0, 0, 1, 1});
  by_route.routes = Parsed("allreduce:*:builtin/double_tree;reducescatter:*:builtin/ring", false);
  RouterOptions by_rule = Ruled("allreduce:0-inf@hierarchical;reducescatter:0-inf@ring");
  by_rule.topology = by_route.topology;
  for (const RouterOptions& options : {by_route, by_rule}) {
    for (const Kind kind : {Kind::kAllreduce, Kind::kReduceScatter}) {
      const auto chosen = [&](Work work) {
        const Router router(options);
        return std::string(router.Of(work, {1 << 20}, World())->algorithm);
      };
      for (int32_t i = 0; i < kKernelDTypeCount; ++i) {
        Work work = Of(kind, static_cast<DType>(i));
        EXPECT_NE(chosen(work), "direct");
        work.postscale = 0.5;
        const bool is_narrow = WideOf(work.dtype) != work.dtype;
        EXPECT_EQ(chosen(work) == "direct", is_narrow) << Name(work.dtype);
        work.postscale = 1.0;
        work.op = ReduceOp::kAverage;
        EXPECT_EQ(chosen(work) == "direct", is_narrow) << Name(work.dtype);
      }
    }
  }
  by_rule.rules = *AlgorithmRules::Parse("allreduce:0-inf@gather_all", false);
  Work work = Of(Kind::kAllreduce, DType::kFloat16);
  work.op = ReduceOp::kAverage;
  EXPECT_EQ(Text(Take(by_rule, work, {1 << 20})), "0 gather_all user_rule");
}

TEST(Router, a_scaled_sum_of_a_narrow_type_takes_no_ring_by_itself) {
  const RouterOptions options = On({0, 1, 2, 3});
  Work work = Of(Kind::kAllreduce, DType::kInt8);
  EXPECT_EQ(Text(Take(options, work, {1 << 20})), "0 ring hosts");
  work.postscale = 0.5;
  EXPECT_EQ(Text(Take(options, work, {1 << 20})), "0 direct link_model");
  work.kind = Kind::kReduceScatter;
  EXPECT_EQ(Text(Take(options, work, {1 << 20})), "0 direct hosts");
}

TEST(Router, a_group_of_one_rank_exchanges_nothing) {
  EXPECT_EQ(Text(Take(Ruled("ring"), Of(Kind::kAllreduce), {4}, World(1))), "0 none alone");
}

TEST(Router, a_tensor_on_a_device_takes_the_way_of_one_on_the_host) {
  Work work = Of(Kind::kAllreduce);
  work.device_kind = DeviceKind::kCuda;
  const RouterOptions options = On({0, 0, 0, 0});
  for (const int64_t bytes : {64, 1 << 20}) {
    EXPECT_EQ(Text(Take(options, work, {bytes})),
              Text(Take(options, Of(Kind::kAllreduce), {bytes})));
  }
}

TEST(Router, mpi_runs_in_its_library_what_that_does_well) {
  const RouterOptions options = Mpi(MpiCollectives::kAuto, false);
  const auto chosen = [&](const Work& work, Load load) { return Text(Take(options, work, load)); };
  const std::string library = "1 library mpi_collectives";

  EXPECT_EQ(chosen(Of(Kind::kAllreduce), {128 << 10}), library);
  EXPECT_EQ(chosen(Of(Kind::kAllreduce), {(128 << 10) + 4}), "2 hierarchical hosts");
  EXPECT_EQ(chosen(Of(Kind::kAllreduce, DType::kFloat32, ReduceOp::kAverage), {64}), library);
  // What MPI does not promise.
  EXPECT_EQ(chosen(Of(Kind::kAllreduce, DType::kFloat32, ReduceOp::kMin), {1 << 10}).front(), '2');
  EXPECT_EQ(chosen(Of(Kind::kAllreduce, DType::kInt32, ReduceOp::kMin), {1 << 10}), library);
  EXPECT_EQ(chosen(Of(Kind::kAllreduce, DType::kFloat16), {1 << 10}).front(), '2');
  EXPECT_EQ(chosen(Of(Kind::kAllgather), {1 << 20}), library);
  EXPECT_EQ(chosen(Of(Kind::kAllgather), {1 << 20, true}), "2 ring size");
  EXPECT_EQ(chosen(Of(Kind::kBroadcast), {int64_t{1} << 31}), "2 chain size");
  EXPECT_EQ(chosen(Of(Kind::kAlltoall), {64}), "2 pairwise only");
  EXPECT_EQ(chosen(Of(Kind::kSend), {64}), "2 direct only");
}

TEST(Router, mpi_does_as_it_is_told) {
  const RouterOptions library = Mpi(MpiCollectives::kLibrary, false);
  EXPECT_EQ(Take(library, Of(Kind::kAlltoall), {64}).executor, kMpi);
  EXPECT_EQ(Take(library, Of(Kind::kAllreduce), {1 << 20}).executor, kMpi);
  RouterOptions deterministic = library;
  deterministic.is_deterministic = true;
  EXPECT_EQ(Take(deterministic, Of(Kind::kAllreduce), {64}).executor, kMessages);

  const RouterOptions messages = Mpi(MpiCollectives::kMessages, false);
  EXPECT_EQ(Take(messages, Of(Kind::kBroadcast), {64}).executor, kMessages);
  RouterOptions no_type = Mpi(MpiCollectives::kAuto, false);
  no_type.mpi->dtypes.fill(false);
  EXPECT_EQ(Take(no_type, Of(Kind::kAllreduce), {64}).executor, kMessages);
}

TEST(Router, ranks_of_one_host_do_without_mpi_where_they_share_memory) {
  const RouterOptions options = Mpi(MpiCollectives::kAuto, true);
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {64}, Ranks({2, 3})).executor, 0);
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {64}, Ranks({0, 2})).executor, kMpi);
  EXPECT_EQ(Text(Take(options, Of(Kind::kAllreduce), {1 << 20})), "3 hierarchical hosts");
  // Another algorithm would wait for shared memory and MPI at once.
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce, DType::kFloat16), {1 << 20}).executor, kMessages);
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {64}, Ranks({2, 3})).backend, kMpi);
}

TEST(Router, a_request_may_name_the_backend) {
  RouterOptions options = Mpi(MpiCollectives::kAuto, false);
  Work work = Of(Kind::kAllreduce);
  work.backend = Router::kBuiltin;
  EXPECT_EQ(Take(options, work, {64}).executor, 0);
  options.mpi->is_default = false;
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {64}).executor, 0);
  work.backend = kMpi;
  EXPECT_EQ(Take(options, work, {64}).executor, kMpi);
  EXPECT_EQ(Router(options).backends(), 2u);
}

TEST(Router, a_route_rule_comes_before_rules_of_algorithms_and_what_was_measured) {
  RouterOptions options = Ruled("allreduce:0-inf@tree");
  options.routes = Parsed("allreduce:<4K:builtin/ring;allreduce.int64:builtin/direct", false);
  options.table = Parsed("allreduce:<8K:builtin/double_tree;allgather:builtin", false);
  EXPECT_EQ(Chosen(options, DType::kFloat32, 4095), "0 ring route_rule");
  EXPECT_EQ(Chosen(options, DType::kFloat32, 4096), "0 double_tree route_table");
  EXPECT_EQ(Chosen(options, DType::kInt64, 1 << 20), "0 direct route_rule");
  EXPECT_EQ(Chosen(options, DType::kFloat32, 1 << 20), "0 tree user_rule");
  EXPECT_EQ(Text(Take(options, Of(Kind::kAllgather), {64})), "0 direct route_table");
  EXPECT_EQ(Text(Take(options, Of(Kind::kAlltoall), {64})), "0 pairwise only");
  EXPECT_EQ(Text(Take(options, Of(Kind::kAllreduce), {64}, World(1))), "0 none alone");
}

TEST(Router, a_table_is_of_all_ranks_and_does_not_round_sixteen_bits_at_every_step) {
  RouterOptions options = On({0, 0, 0, 0});
  options.table = Parsed("allreduce:builtin/ring", false);
  EXPECT_EQ(Chosen(options, DType::kFloat32, 64), "0 ring route_table");
  EXPECT_NE(Chosen(options, DType::kFloat16, 64), "0 ring route_table");
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {64}, Ranks({0, 2})).row, "link_model");
  options.table = Parsed("allreduce.float16:builtin/ring", false);
  EXPECT_EQ(Chosen(options, DType::kFloat16, 64), "0 ring route_table");
}

TEST(Router, a_rule_names_the_backend_of_calls_that_name_none) {
  RouterOptions options = Mpi(MpiCollectives::kAuto, false);
  options.mpi->is_default = false;
  options.routes =
      Parsed("alltoall:>=1K:mpi;reduce:mpi/library;broadcast:mpi/chain;send:mpi", true);
  EXPECT_EQ(Text(Take(options, Of(Kind::kAlltoall), {1023})), "0 pairwise only");
  EXPECT_EQ(Text(Take(options, Of(Kind::kAlltoall), {1024})), "2 pairwise route_rule");
  EXPECT_EQ(Text(Take(options, Of(Kind::kReduce), {1 << 20})), "1 library route_rule");
  EXPECT_EQ(Text(Take(options, Of(Kind::kBroadcast), {64})), "2 chain route_rule");
  EXPECT_EQ(Take(options, Of(Kind::kSend), {64}).executor, kMessages);
  EXPECT_EQ(Take(options, Of(Kind::kRecv), {64}).executor, kMessages);

  Work named = Of(Kind::kBroadcast);
  named.backend = Router::kBuiltin;
  EXPECT_EQ(Text(Take(options, named, {64})), "0 binomial size");
}

TEST(Router, what_the_library_cannot_do_runs_over_its_messages) {
  RouterOptions options = Mpi(MpiCollectives::kMessages, false);
  options.routes = Parsed("allreduce:mpi/library;alltoall:mpi/library", true);
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {64}).executor, kMpi);
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce, DType::kFloat16), {64}).executor, kMessages);
  EXPECT_EQ(Take(options, Of(Kind::kAlltoall), {64}).executor, kMpi);
  options.is_deterministic = true;
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {64}).executor, kMessages);
}

TEST(Router, a_rule_takes_ranks_of_one_host_to_the_library_as_well) {
  RouterOptions options = Mpi(MpiCollectives::kAuto, true);
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {64}, Ranks({0, 1})).executor, 0);
  options.routes = Parsed("allreduce:mpi/library", true);
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {64}, Ranks({0, 1})).executor, kMpi);
  options.routes = Parsed("allreduce:mpi", true);
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {64}, Ranks({0, 1})).executor, 0);
}

// Ranks outside of a group, which do not know it, put its buckets into the same lanes.
TEST(Router, the_backend_is_known_without_the_group) {
  RouterOptions options = Mpi(MpiCollectives::kAuto, true);
  options.mpi->is_default = false;
  options.routes = Parsed("allreduce:<1K:builtin;alltoall:*:mpi", true);
  options.table = Parsed("allreduce:>=1M:mpi", true);
  options.others = 1;
  const Router router(std::move(options));
  const Group half = Ranks({0, 2});
  for (const Kind kind : {Kind::kAllreduce, Kind::kAlltoall, Kind::kBroadcast}) {
    for (const int64_t bytes : {1, 2000, 2 << 20}) {
      for (const BackendId named : {kAnyBackend, 0, 1, 2}) {
        Work work = Of(kind);
        work.backend = named;
        EXPECT_EQ(router.BackendOf(work, bytes, true), router.Of(work, {bytes}, World())->backend);
        EXPECT_EQ(router.BackendOf(work, bytes, false), router.Of(work, {bytes}, half)->backend);
      }
    }
  }
  EXPECT_EQ(router.BackendOf(Of(Kind::kAllreduce), 2 << 20, true), kMpi);
  EXPECT_EQ(router.BackendOf(Of(Kind::kAllreduce), 2 << 20, false), Router::kBuiltin);
}

TEST(Router, a_backend_of_its_own_means_runs_what_names_it) {
  RouterOptions options = On({0, 0, 1, 1});
  options.others = 1;
  const Router router(std::move(options));
  EXPECT_EQ(router.backends(), 2u);
  Work work = Of(Kind::kAllreduce);
  work.backend = 1;
  EXPECT_EQ(Text(*router.Of(work, {100}, World())), "1 library only");
}

// Jobs with NCCL: 'nccl' is backend 1 and runs in place 1.
RouterOptions WithNccl(bool is_default) {
  RouterOptions options = On({0, 0, 0, 0});
  options.nccl = NcclRows{.backend = 1, .executor = 1, .is_default = is_default};
  return options;
}

Work OnGpu(Kind kind, DType dtype = DType::kFloat32, ReduceOp op = ReduceOp::kSum,
           double factor = 1.0) {
  Work work = Of(kind, dtype, op);
  work.device_kind = DeviceKind::kCuda;
  work.postscale = factor;
  return work;
}

TEST(Router, nccl_takes_what_is_on_a_gpu_and_it_can_do) {
  const RouterOptions options = WithNccl(true);
  const auto text = [&](const Work& work) { return Text(Take(options, work, {64})); };
  const std::string there = "1 library device";

  EXPECT_EQ(text(OnGpu(Kind::kAllreduce)), there);
  EXPECT_EQ(text(OnGpu(Kind::kAlltoall, DType::kInt16)), there);
  EXPECT_EQ(text(OnGpu(Kind::kReduce, DType::kInt64, ReduceOp::kMax)), there);
  EXPECT_EQ(text(OnGpu(Kind::kReduceScatter, DType::kBfloat16, ReduceOp::kAverage)), there);
  EXPECT_EQ(text(OnGpu(Kind::kAllreduce, DType::kFloat16, ReduceOp::kSum, 0.5)), there);
  EXPECT_EQ(Text(Take(options, OnGpu(Kind::kAllreduce), {64}, World(1))), there);
  for (const Work& work : {Of(Kind::kAllreduce), OnGpu(Kind::kAllreduce, DType::kInt16),
                           OnGpu(Kind::kAllreduce, DType::kBool),
                           OnGpu(Kind::kAllreduce, DType::kFloat32, ReduceOp::kMin),
                           OnGpu(Kind::kAllreduce, DType::kInt32, ReduceOp::kAverage),
                           OnGpu(Kind::kAllreduce, DType::kInt32, ReduceOp::kBitOr),
                           OnGpu(Kind::kAllreduce, DType::kInt32, ReduceOp::kSum, 0.5),
                           OnGpu(Kind::kAllreduce, DType::kFloat16, ReduceOp::kSum, 1e-3),
                           OnGpu(Kind::kAllreduce, DType::kFloat32, ReduceOp::kProduct, 2.0)}) {
    EXPECT_EQ(Take(options, work, {64}).executor, 0);
    EXPECT_EQ(Take(options, work, {64}).backend, 0);
  }
  EXPECT_EQ(text(OnGpu(Kind::kSend)), there);
  Work coded = OnGpu(Kind::kAllreduce);
  coded.codec = "fp16";
  EXPECT_EQ(Take(options, coded, {64}).executor, 0);
}

TEST(Router, a_call_may_name_nccl_and_builtin_does_what_that_cannot) {
  const RouterOptions options = WithNccl(false);
  EXPECT_EQ(Take(options, OnGpu(Kind::kAllreduce), {64}).executor, 0);
  Work named = OnGpu(Kind::kAllreduce);
  named.backend = 1;
  EXPECT_EQ(Text(Take(options, named, {64})), "1 library device");
  named.op = ReduceOp::kBitXor;
  EXPECT_EQ(Take(options, named, {64}).executor, 0);
  EXPECT_EQ(Take(options, named, {64}).row, "emulated");
  EXPECT_EQ(Take(options, named, {64}).backend, 1);
}

TEST(Router, a_rule_takes_nccl_inside_the_hosts_alone) {
  RouterOptions options = On({0, 0, 1, 1});
  options.nccl = NcclRows{.backend = 1, .executor = 1, .hierarchy = 2, .is_default = true};
  const std::vector<std::string> backends = {"builtin", "nccl"};
  auto rules = RouteRules::Parse("route", "allreduce:>=1M:nccl/hierarchical", {backends, false});
  ASSERT_OK(rules);
  options.routes = std::move(rules).value();
  const Load large{1 << 20};
  const auto text = [&](const Work& work, Load load, const Group& group) {
    return Text(Take(options, work, load, group));
  };

  EXPECT_EQ(text(OnGpu(Kind::kAllreduce), large, World()), "2 hierarchical route_rule");
  EXPECT_EQ(Take(options, OnGpu(Kind::kAllreduce), large).backend, 1);
  EXPECT_EQ(text(OnGpu(Kind::kAllreduce), large, Ranks({0, 2})), "2 hierarchical route_rule");
  EXPECT_EQ(text(OnGpu(Kind::kAllreduce), large, Ranks({2, 3})), "1 library route_rule");
  EXPECT_EQ(text(OnGpu(Kind::kAllreduce), {100}, World()), "1 library device");
  EXPECT_EQ(text(OnGpu(Kind::kBroadcast), large, World()), "1 library device");
  EXPECT_EQ(Take(options, OnGpu(Kind::kAllreduce, DType::kInt16), large).executor, 0);
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), large).executor, 0);
}

// NCCL would take its own way between them.
TEST(Router, what_follows_a_plan_leaves_nccl_inside_the_hosts) {
  RouterOptions options = On({0, 0, 1, 1});
  options.nccl = NcclRows{.backend = 1, .executor = 1, .hierarchy = 2, .is_default = true};
  Group world = World();
  auto plan = TreePlan::Parse(
      "size 4\nbytes_min 1000\nallreduce 0 1 up -1 0 0 2 down -1 0 0 2\nbroadcast 0 1 down -1 0 0 2\n",
      4);
  ASSERT_OK(plan);
  world.plan = std::move(plan).value();
  const Load large{1 << 20};
  const auto text = [&](const Work& work, Load load) {
    return Text(Take(options, work, load, world));
  };
  const auto routed = [&](const char* route) {
    const std::vector<std::string> backends = {"builtin", "nccl"};
    auto rules = RouteRules::Parse("route", route, {backends, false});
    EXPECT_OK(rules);
    options.routes = std::move(rules).value();
    return text(OnGpu(Kind::kAllreduce), large);
  };

  EXPECT_EQ(text(OnGpu(Kind::kAllreduce), large), "2 plan plan");
  EXPECT_EQ(text(OnGpu(Kind::kAllreduce), {999}), "1 library device");
  EXPECT_EQ(text(OnGpu(Kind::kAllreduce, DType::kBfloat16), large), "1 library device");
  EXPECT_EQ(text(OnGpu(Kind::kBroadcast), large), "1 library device");
  EXPECT_EQ(text(Of(Kind::kAllreduce), large), "0 plan plan");
  EXPECT_EQ(routed("allreduce:nccl"), "2 plan route_rule");
  EXPECT_EQ(routed("allreduce:nccl/hierarchical"), "2 plan route_rule");
  EXPECT_EQ(text(OnGpu(Kind::kAllreduce), {999}), "2 hierarchical route_rule");
  EXPECT_EQ(routed("allreduce:nccl/library"), "1 library route_rule");
  options.is_deterministic = true;
  EXPECT_EQ(routed("allreduce:nccl"), "1 library route_rule");
  options.is_deterministic = false;
  options.topology = On({0, 0, 0, 0}).topology;
  EXPECT_EQ(routed("allreduce:nccl"), "1 library route_rule");
}

// A backend of several executors moves the places of those behind it.
TEST(Router, a_backend_has_its_name_wherever_it_runs) {
  RouterOptions options = On({0, 0});
  options.mpi = MpiRows{.library = 1, .messages = 2};
  options.ps = PsRows{.backend = 2, .executor = 3};
  options.nccl = NcclRows{.backend = 3, .executor = 4};
  const Router router(options);
  EXPECT_EQ(router.NameOf(1), "mpi");
  EXPECT_EQ(router.NameOf(2), "ps");
  EXPECT_EQ(router.NameOf(3), "nccl");
  EXPECT_EQ(router.NameOf(Router::kBuiltin), "");
}

// Jobs with servers: 'ps' is backend 1 and runs in place 1.
RouterOptions WithServers(bool is_default) {
  RouterOptions options = On({0, 0, 0, 0});
  options.ps = PsRows{.backend = 1, .executor = 1, .is_default = is_default};
  return options;
}

TEST(Router, servers_sum_and_builtin_does_the_rest_for_them) {
  const RouterOptions options = WithServers(true);
  EXPECT_EQ(Text(Take(options, Of(Kind::kAllreduce), {64})), "1 push_pull only");
  EXPECT_EQ(Text(Take(options, Of(Kind::kAllreduce), {64}, Ranks({1, 3}))), "1 push_pull only");
  EXPECT_EQ(Text(Take(options, Of(Kind::kAllreduce), {64}, World(1))), "0 none alone");
  EXPECT_EQ(Text(Take(options, Of(Kind::kAlltoall), {64})), "0 pairwise emulated");
  EXPECT_EQ(Text(Take(options, Of(Kind::kBroadcast), {64})), "0 binomial emulated");
  EXPECT_EQ(Take(options, Of(Kind::kAlltoall), {64}).backend, 1);
  EXPECT_EQ(Router(options).backends(), 2u);
}

TEST(Router, what_has_failed_is_avoided_by_all_that_do_not_name_it) {
  RouterOptions options = WithServers(true);
  Work any = Of(Kind::kAllreduce);
  any.avoided_backends = 1u << 1;
  Work named = any;
  named.backend = 1;
  EXPECT_EQ(Take(options, any, {64}).backend, 0);
  EXPECT_EQ(Router(options).BackendOf(any, 64, true), 0);
  EXPECT_EQ(Text(Take(options, named, {64})), "1 push_pull only");

  const std::vector<std::string> backends = {"builtin", "ps"};
  auto rules = RouteRules::Parse("route", "allreduce:*:ps;allreduce:*:builtin/direct", {backends});
  ASSERT_OK(rules);
  options.routes = std::move(rules).value();
  EXPECT_EQ(Text(Take(options, any, {64})), "0 direct route_rule");
  EXPECT_EQ(Text(Take(options, Of(Kind::kAllreduce), {64})), "1 push_pull route_rule");
}

TEST(Router, servers_belong_to_the_backend_that_users_name) {
  RouterOptions options = On({0, 0});
  options.ps = PsRows{.backend = 2, .executor = 3};
  EXPECT_EQ(Router(options).OwnerOf(3), 2);
  EXPECT_EQ(Router(options).OwnerOf(0), 0);
}

TEST(Router, calls_and_rules_may_name_the_servers) {
  RouterOptions options = WithServers(false);
  EXPECT_NE(Take(options, Of(Kind::kAllreduce), {1 << 20}).executor, 1);
  Work named = Of(Kind::kAllreduce);
  named.backend = 1;
  EXPECT_EQ(Text(Take(options, named, {64})), "1 push_pull only");

  const std::vector<std::string> backends = {"builtin", "ps"};
  auto rules = RouteRules::Parse("route", "allreduce:>=1M:ps", {backends, false});
  ASSERT_OK(rules);
  options.routes = std::move(rules).value();
  EXPECT_EQ(Text(Take(options, Of(Kind::kAllreduce), {1 << 20})), "1 push_pull route_rule");
  EXPECT_EQ(Take(options, Of(Kind::kAllreduce), {(1 << 20) - 1}).executor, 0);
}

// An element takes one of several trees by its place in the bucket.
TEST(Router, sums_of_deterministic_jobs_follow_no_plan_that_divides_them) {
  const std::string tree = "allreduce 0 1 up -1 0 0 0 down -1 0 0 0\n";
  Group world = World();
  const auto chosen = [&](const std::string& trees, bool is_deterministic) {
    Result<std::shared_ptr<const TreePlan>> plan = TreePlan::Parse("size 4\n" + trees, 4);
    EXPECT_OK(plan);
    world.plan = std::move(plan).value();
    RouterOptions options = On({0, 1, 2, 3});
    options.is_deterministic = is_deterministic;
    return Take(options, Of(Kind::kAllreduce), {1 << 20}, world).row;
  };

  EXPECT_EQ(chosen(tree, true), "plan");
  EXPECT_EQ(chosen(tree + tree, false), "plan");
  EXPECT_EQ(chosen(tree + tree, true), "link_model");
}

}  // namespace
}  // namespace rabit

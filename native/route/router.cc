#include "route/router.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/epilogue.h"
#include "base/kind.h"
#include "base/measured.h"
#include "base/tree_plan.h"
#include "collective/allreduce.h"
#include "collective/hosts.h"
#include "collective/planned.h"

namespace rabit {
namespace {

// Adds up at one place, in the wide type, with the fewest bytes.
constexpr std::string_view kDirectAlgorithm = "direct";

// Of which a server can add up a tensor at once (arithmetic/reduce.h).
constexpr int kServedRanksMax = 1024;

// The sum stays in a wide type until what is left of an average has been done.
bool EndsWide(const Work& work, const Group& group) {
  return TraitsOf(work.kind).reduces &&
         EndsWide(work.dtype, EpilogueOf(work.op, work.dtype, group.size(), work.postscale));
}

int CountAllHosts(const Topology& topology) {
  std::vector<int> hosts = topology.host_of;
  std::sort(hosts.begin(), hosts.end());
  return static_cast<int>(std::unique(hosts.begin(), hosts.end()) - hosts.begin());
}

}  // namespace

Router::Router(RouterOptions options)
    : options_(std::move(options)), hosts_of_all_(CountAllHosts(options_.topology)) {}

bool Router::IsOfAll(const Group& group) const {
  return group.size() == static_cast<int>(options_.topology.host_of.size());
}

int Router::HostsOf(const Group& group) const {
  return IsOfAll(group) ? hosts_of_all_ : CountHosts(options_.topology, group);
}

// More than two hosts with one rank of the group each, and enough bytes.
bool Router::WantsRing(const Group& group, int64_t bytes) const {
  return rabit::WantsRing(group.size(), bytes) && HostsOf(group) == group.size();
}

// All on one host with fewer cores: what ranks could do at the same time they do in turns, and
// fewer, longer messages cost less than a pipeline.
bool Router::SharesCores(const LinkCosts& links, const Group& group) const {
  return links.slowest.is_crowded && HostsOf(group) == 1;
}

// What users have said or measured of sizes is about all that is joined.
int64_t Router::JoinedBytesMax(const Route& route, const Group& group) const {
  const bool is_chosen_here = route.executor == kBuiltin && route.row != "route_rule" &&
                              route.row != "route_table" && route.row != "user_rule";
  const bool is_copied = options_.shares_memory && HostsOf(group) == 1;
  return is_chosen_here && is_copied ? kJoinedBytesMax : std::numeric_limits<int64_t>::max();
}

// Several hosts, and one of them with several ranks of the group.
bool Router::WantsHierarchy(const LinkCosts& links, const Group& group, int64_t bytes,
                            double flat_us) const {
  const int hosts = HostsOf(group);
  if (hosts <= 1 || hosts >= group.size()) return false;
  if (!links.within_host.has_value()) return bytes >= kHierarchicalBytesMin;
  const int local_size = (group.size() + hosts - 1) / hosts;
  return HierarchicalCostMicros(*links.within_host, links.slowest, local_size, hosts, bytes) <
         flat_us;
}

Result<Route> Router::Of(const Work& work, Load load, const Group& group) const {
  // But with NCCL, what is in the memory of a device is exchanged in that of the host: its kind
  // decides nothing.
  const std::optional<MpiRows>& mpi = options_.mpi;
  const Wish wish = group.size() > 1 ? WishFor(work, load.bytes, IsOfAll(group)) : Wish();
  // A wish of the rules, then that of the request, then the defaults: the order is the contract of
  // RABIT_ROUTE.
  const BackendId backend = BackendFor(work, wish);
  if (backend >= first_other()) {
    return Route{backend, backend, kLibraryAlgorithm, wish.row.empty() ? "only" : wish.row};
  }
  if (mpi.has_value() && backend == mpi->library) return OverMpi(work, load, group, wish);
  const std::optional<PsRows>& ps = options_.ps;
  if (ps.has_value() && backend == ps->backend) return OverServers(work, load, group, wish);
  const std::optional<NcclRows>& nccl = options_.nccl;
  if (nccl.has_value() && backend == nccl->backend) return OverNccl(work, load, group, wish);
  if (!wish.algorithm.empty()) {
    return Route{kBuiltin, kBuiltin, RoundingOnce(wish.algorithm, work, group), wish.row};
  }
  const Choice choice = Choose(options_.links, work, load.bytes, group);
  return Route{kBuiltin, kBuiltin, choice.algorithm, wish.row.empty() ? choice.row : wish.row};
}

std::string_view Router::NameOf(BackendId backend) const {
  if (options_.mpi.has_value() && backend == options_.mpi->library) return "mpi";
  if (options_.ps.has_value() && backend == options_.ps->backend) return "ps";
  if (options_.nccl.has_value() && backend == options_.nccl->backend) return "nccl";
  return {};
}

BackendId Router::OwnerOf(int32_t executor) const {
  const std::optional<PsRows>& ps = options_.ps;
  return ps.has_value() && executor == ps->executor ? ps->backend : executor;
}

BackendId Router::BackendOf(const Work& work, int64_t bytes, bool is_of_all) const {
  return BackendFor(work, WishFor(work, bytes, is_of_all));
}

BackendId Router::BackendFor(const Work& work, const Wish& wish) const {
  if (wish.backend.has_value()) return *wish.backend;
  if (work.backend != kAnyBackend) return work.backend;
  const std::optional<NcclRows>& nccl = options_.nccl;
  if (nccl.has_value() && nccl->is_default && nccl->Runs(work)) return nccl->backend;
  const std::optional<PsRows>& ps = options_.ps;
  if (ps.has_value() && ps->is_default && !work.Avoids(ps->backend)) return ps->backend;
  return options_.mpi.has_value() && options_.mpi->is_default ? options_.mpi->library : kBuiltin;
}

Router::Wish Router::WishFor(const Work& work, int64_t bytes, bool is_of_all) const {
  if (const RouteRule* const rule = options_.routes.Find(work, bytes)) {
    return {rule->backend, rule->algorithm, "route_rule"};
  }
  // A table comes from measurements among all ranks, and says nothing of a part of them.
  if (!is_of_all) return {};
  const RouteRule* const rule = options_.table.Find(work, bytes);
  if (rule == nullptr || !FitsTable(*rule, work)) return {};
  return {rule->backend, rule->algorithm, "route_table"};
}

// A table that was measured with one type says how fast others are as well, but not whether their
// users can do with one rounding for each rank.
bool Router::FitsTable(const RouteRule& rule, const Work& work) const {
  if (rule.dtype.has_value() || !TraitsOf(work.kind).reduces) return true;
  return !WantsRankOrder(work.dtype, work.op) || rule.algorithm.empty() ||
         SumsInRankOrder(work.kind, rule.algorithm);
}

Route Router::OverServers(const Work& work, Load load, const Group& group, const Wish& wish) const {
  const PsRows& ps = *options_.ps;
  if (ps.RunsOnServers(work, group) && group.size() <= kServedRanksMax) {
    return {ps.backend, ps.executor, kPushPullAlgorithm, wish.row.empty() ? "only" : wish.row};
  }
  const Choice choice = Choose(options_.links, work, load.bytes, group);
  return {ps.backend, kBuiltin, choice.algorithm, group.size() > 1 ? "emulated" : choice.row};
}

Route Router::OverNccl(const Work& work, Load load, const Group& group, const Wish& wish) const {
  const NcclRows& nccl = *options_.nccl;
  const bool has_hierarchy =
      work.kind == Kind::kAllreduce && nccl.hierarchy >= 0 && HostsOf(group) > 1;
  if (nccl.Runs(work) && has_hierarchy && wish.algorithm != kLibraryAlgorithm) {
    // NCCL between the hosts would take its own way.  An element takes a rank of its host by its
    // place in the bucket, which may differ in the next run.
    const bool is_planned = !options_.is_deterministic && FollowsPlan(work, load.bytes, group);
    if (is_planned || wish.algorithm == kHierarchicalAlgorithm) {
      return {nccl.backend, nccl.hierarchy, is_planned ? kPlanAlgorithm : kHierarchicalAlgorithm,
              wish.row.empty() ? "plan" : wish.row};
    }
  }
  if (nccl.Runs(work)) {
    return {nccl.backend, nccl.executor, kLibraryAlgorithm, wish.row.empty() ? "device" : wish.row};
  }
  const Choice choice = Choose(options_.links, work, load.bytes, group);
  return {nccl.backend, kBuiltin, choice.algorithm, group.size() > 1 ? "emulated" : choice.row};
}

Route Router::OverMpi(const Work& work, Load load, const Group& group, const Wish& wish) const {
  const MpiRows& mpi = *options_.mpi;
  const auto ours = [&](int32_t executor, Choice choice) {
    if (!wish.row.empty()) choice.row = wish.row;
    return Route{mpi.library, executor, choice.algorithm, choice.row};
  };
  const bool wants_library = wish.algorithm == kLibraryAlgorithm;
  if (wants_library && mpi.CanRunInLibrary(work, load, group, options_.is_deterministic)) {
    return {mpi.library, mpi.library, kLibraryAlgorithm, wish.row};
  }
  if (!wish.algorithm.empty() && !wants_library) {
    return ours(mpi.messages, {RoundingOnce(wish.algorithm, work, group), wish.row});
  }
  if (mpi.shares_hosts && HostsOf(group) == 1) {
    return ours(kBuiltin, Choose(options_.links, work, load.bytes, group));
  }
  if (mpi.RunsInLibrary(work, load, group, options_.is_deterministic)) {
    return {mpi.library, mpi.library, kLibraryAlgorithm,
            wish.row.empty() ? "mpi_collectives" : wish.row};
  }
  // What MPI's messages cost is not measured.
  const Choice choice = Choose(LinkCosts{}, work, load.bytes, group);
  // Shared memory and MPI both move bytes only while somebody waits on them.  Of the algorithms,
  // `hierarchical` alone is through with one before it begins with the other; in any other, ranks
  // that wait on different ones could wait in a circle.
  const bool crosses = mpi.across >= 0 && choice.algorithm == kHierarchicalAlgorithm;
  return ours(crosses ? mpi.across : mpi.messages, choice);
}

Router::Choice Router::Choose(const LinkCosts& links, const Work& work, int64_t bytes,
                              const Group& group) const {
  if (group.size() <= 1) return {"none", "alone"};
  if (FollowsPlan(work, bytes, group)) return {kPlanAlgorithm, "plan"};
  switch (work.kind) {
    case Kind::kAllreduce:
      return ChooseAllreduce(links, work, bytes, group);
    case Kind::kAllgather:
      return ChooseAllgather(links, bytes, group);
    case Kind::kBroadcast:
      return ChooseBroadcast(links, bytes, group);
    case Kind::kReduceScatter:
      return ChooseReduceScatter(work, bytes, group);
    case Kind::kAlltoall:
      return {"pairwise", "only"};
    case Kind::kBarrier:
      return {"dissemination", "only"};
    default:
      return {"direct", "only"};
  }
}

// Some sums are added up in rank order, at one place.  Of deterministic jobs, those of every size
// follow the plan if it has one tree for them: with several, an element takes one by its place in
// the bucket, which may differ in the next run, as the sizes of buckets may.
bool Router::FollowsPlan(const Work& work, int64_t bytes, const Group& group) const {
  if (group.plan == nullptr) return false;
  const bool has_fixed_order = options_.is_deterministic && TraitsOf(work.kind).reduces;
  if (!has_fixed_order && bytes < group.plan->bytes_min()) return false;
  if (!group.plan->Has(work.kind, std::max(group.IndexOf(work.root), 0))) return false;
  if (has_fixed_order && !group.plan->HasOneTreeEach(work.kind)) return false;
  // A rule of the user's is the more recent word: it names an algorithm for these sizes.
  if (!options_.rules.Find(work.kind, bytes).empty()) return false;
  if (!TraitsOf(work.kind).reduces) return true;
  const bool is_wide = WantsRankOrder(work.dtype, work.op) || EndsWide(work, group);
  return !is_wide || (work.kind == Kind::kAllreduce && group.plan->has_wide_sums());
}

Router::Choice Router::ChooseAllreduce(const LinkCosts& links, const Work& work, int64_t bytes,
                                       const Group& group) const {
  const std::string_view wanted = options_.rules.Find(Kind::kAllreduce, bytes);
  if (!wanted.empty()) return {RoundingOnce(wanted, work, group), "user_rule"};
  const bool is_rank_ordered =
      options_.is_deterministic || WantsRankOrder(work.dtype, work.op) || EndsWide(work, group);
  const AllreduceAlgorithm& flat =
      ChooseAllreduceAlgorithm(links.slowest, group.size(), bytes, is_rank_ordered);
  // A hierarchy and a ring add in another order, so neither is looked at.
  if (is_rank_ordered) return {flat.name, "link_model"};
  const double flat_us = flat.cost_us(links.slowest, group.size(), bytes);
  if (WantsHierarchy(links, group, bytes, flat_us)) {
    return {kHierarchicalAlgorithm, "hosts"};
  }
  if (WantsRing(group, bytes)) return {"ring", "hosts"};
  return {flat.name, "link_model"};
}

// What a rule names, or `direct` where that would round a sum that ends wide at every step.
std::string_view Router::RoundingOnce(std::string_view algorithm, const Work& work,
                                      const Group& group) {
  const bool rounds_once = !EndsWide(work, group) || SumsInRankOrder(work.kind, algorithm);
  return rounds_once ? algorithm : kDirectAlgorithm;
}

Router::Choice Router::ChooseAllgather(const LinkCosts& links, int64_t bytes,
                                       const Group& group) const {
  const std::string_view wanted = options_.rules.Find(Kind::kAllgather, bytes);
  if (!wanted.empty()) return {wanted, "user_rule"};
  if (WantsRing(group, bytes)) return {"ring", "hosts"};
  if (SharesCores(links, group)) return {"direct", "cores"};
  return {group.size() > 2 && bytes >= kRingAllgatherBytesMin ? "ring" : "direct", "size"};
}

Router::Choice Router::ChooseBroadcast(const LinkCosts& links, int64_t bytes,
                                       const Group& group) const {
  const std::string_view wanted = options_.rules.Find(Kind::kBroadcast, bytes);
  if (!wanted.empty()) return {wanted, "user_rule"};
  if (SharesCores(links, group)) return {"binomial", "cores"};
  return {group.size() > 2 && bytes >= kChainBroadcastBytesMin ? "chain" : "binomial", "size"};
}

Router::Choice Router::ChooseReduceScatter(const Work& work, int64_t bytes,
                                           const Group& group) const {
  const std::string_view wanted = options_.rules.Find(Kind::kReduceScatter, bytes);
  if (!wanted.empty()) return {RoundingOnce(wanted, work, group), "user_rule"};
  const bool may_ring =
      !options_.is_deterministic && !WantsRankOrder(work.dtype, work.op) && !EndsWide(work, group);
  return {may_ring && WantsRing(group, bytes) ? "ring" : "direct", "hosts"};
}

}  // namespace rabit

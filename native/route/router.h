// Router: decides who runs a collective, and how, before any lane sees it.
#pragma once

#include <optional>
#include <utility>

#include "base/group.h"
#include "base/result.h"
#include "base/work.h"
#include "collective/cost.h"
#include "route/algorithm_rules.h"
#include "route/mpi_rows.h"
#include "route/nccl_rows.h"
#include "route/ps_rows.h"
#include "route/route.h"
#include "route/route_rules.h"

namespace rabit {

// Equal on all ranks, whatever they run on.
struct RouterOptions {
  Topology topology;
  RouteRules routes;              // what the user says of backends and algorithms
  RouteRules table;               // what was measured; of groups of all ranks
  AlgorithmRules rules;           // what the user says of algorithms alone
  bool is_deterministic = false;  // only algorithms that sum in rank order
  bool shares_memory = false;     // ranks of this host with each other; equal on these
  LinkCosts links;
  std::optional<MpiRows> mpi;    // there is a backend 'mpi'
  std::optional<PsRows> ps;      // there is a backend 'ps'
  std::optional<NcclRows> nccl;  // there is a backend 'nccl'
  // How many backends come behind those that run by their own means all that is routed to them.
  int32_t others = 0;
};

// The rows, in the order in which they are asked:
//   alone            a group of one rank exchanges nothing
//   route_rule       what the user has said of this kind and size: the backend, maybe the algorithm
//   route_table      the same, measured before
//   mpi_collectives  the MPI library's own functions, in a job that uses them
//   user_rule        what the user has said of the algorithm for this kind and size
//   plan             the trees of the group's plan (base/tree_plan.h); with NCCL, between the hosts
//   hosts            which ranks share a host
//   size             the number of bytes
//   link_model       the cheapest by what the links cost
//   only             there is nothing to choose
//   device           the tensor is on a GPU, and NCCL does it there
//   emulated         the backend that was asked for does not do this; builtin does it instead
// A rule that names an algorithm of several steps gives averages of narrow types to `direct`, which
// rounds once: the mean of values of a type is a value of the type.
// A pure function of arguments that all ranks of a group agree on, so that they choose alike.
// Constant and thread-safe.
class Router {
 public:
  static constexpr BackendId kBuiltin = 0;

  explicit Router(RouterOptions options);

  // How many backends a request can name; the last place is one less.
  size_t backends() const {
    return static_cast<size_t>(first_other()) + static_cast<size_t>(options_.others);
  }
  // Under which a request can name a backend with rows of its own; empty: it has the name of the
  // executor in its place.
  std::string_view NameOf(BackendId backend) const;
  // Under which a request can name what backends[executor] does by itself, of those that can fail
  // without the engine (Backend::fails_apart).
  BackendId OwnerOf(int32_t executor) const;
  // Who an exchange of so many bytes goes to, as far as those can say who know no more of the group
  // than whether it has every rank; Of says the same.
  BackendId BackendOf(const Work& work, int64_t bytes, bool is_of_all) const;
  // kUnsupported if no backend can.
  Result<Route> Of(const Work& work, Load load, const Group& group) const;
  // How many bytes of small tensors one exchange of this route should join.  In shared memory few:
  // what is packed is in the caches when it is sent, and what comes back when it is unpacked.
  int64_t JoinedBytesMax(const Route& route, const Group& group) const;

 private:
  struct Choice {
    std::string_view algorithm;
    std::string_view row;
  };

  // Empty where nobody has said or measured anything.
  struct Wish {
    std::optional<BackendId> backend;
    std::string_view algorithm;
    std::string_view row;
  };

  BackendId first_other() const {
    return 1 + options_.mpi.has_value() + options_.ps.has_value() + options_.nccl.has_value();
  }
  Wish WishFor(const Work& work, int64_t bytes, bool is_of_all) const;
  BackendId BackendFor(const Work& work, const Wish& wish) const;
  bool FitsTable(const RouteRule& rule, const Work& work) const;
  bool IsOfAll(const Group& group) const;
  int HostsOf(const Group& group) const;
  bool WantsRing(const Group& group, int64_t bytes) const;
  bool SharesCores(const LinkCosts& links, const Group& group) const;
  bool WantsHierarchy(const LinkCosts& links, const Group& group, int64_t bytes,
                      double flat_us) const;
  Route OverServers(const Work& work, Load load, const Group& group, const Wish& wish) const;
  Route OverNccl(const Work& work, Load load, const Group& group, const Wish& wish) const;
  Route OverMpi(const Work& work, Load load, const Group& group, const Wish& wish) const;
  // Of our own algorithms, over links of these costs.
  Choice Choose(const LinkCosts& links, const Work& work, int64_t bytes, const Group& group) const;
  bool FollowsPlan(const Work& work, int64_t bytes, const Group& group) const;
  Choice ChooseAllreduce(const LinkCosts& links, const Work& work, int64_t bytes,
                         const Group& group) const;
  Choice ChooseAllgather(const LinkCosts& links, int64_t bytes, const Group& group) const;
  Choice ChooseBroadcast(const LinkCosts& links, int64_t bytes, const Group& group) const;
  Choice ChooseReduceScatter(const Work& work, int64_t bytes, const Group& group) const;
  static std::string_view RoundingOnce(std::string_view algorithm, const Work& work,
                                       const Group& group);

  const RouterOptions options_;
  // Counted once: with thousands of ranks that takes longer than all else around a small tensor.
  const int hosts_of_all_;
};

}  // namespace rabit

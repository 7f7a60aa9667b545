#include "abi/mpi_wiring.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "backend/builtin/builtin_backend.h"
#include "backend/mpi/mpi_backend.h"
#include "backend/mpi/mpi_transport.h"
#include "collective/hosts.h"
#include "transport/routed_transport.h"
#include "transport/shared_transport.h"

namespace rabit {
namespace {

MpiCollectives MpiCollectivesFrom(std::string_view name) {
  if (name == "library") return MpiCollectives::kLibrary;
  return name == "messages" ? MpiCollectives::kMessages : MpiCollectives::kAuto;
}

// A rank that is alone on its host has nobody to share memory with, and does not stand in the way.
bool CanShareMemory(const Options& options, const Connections& connections) {
  return options.mpi_shm && options.mpi_collectives == "auto" &&
         (connections.shares_memory || connections.cores.ranks == 1);
}

// Shared memory to the ranks of this host, MPI to the others.
std::unique_ptr<Transport> RouteByHost(const Connections& connections,
                                       std::unique_ptr<Transport> mpi) {
  if (connections.shm == nullptr) return mpi;
  const int rank = mpi->rank();
  std::vector<int> route;
  for (int peer = 0; peer < mpi->size(); ++peer) {
    route.push_back(connections.topology.SameHost(rank, peer) ? 0 : 1);
  }
  std::vector<std::unique_ptr<Transport>> parts;
  parts.push_back(std::make_unique<SharedTransport>(connections.shm));
  parts.push_back(std::move(mpi));
  return std::make_unique<RoutedTransport>(std::move(parts), std::move(route));
}

template <size_t kSize>
std::array<bool, kSize> Known(std::span<const MpiHandle> handles) {
  std::array<bool, kSize> known{};
  for (size_t i = 0; i < std::min(kSize, handles.size()); ++i) known[i] = handles[i] != 0;
  return known;
}

}  // namespace

Result<WiredMpi> WireMpi(const Options& options, const Connections& connections, int32_t first,
                         bool is_always) {
  RABIT_ASSIGN_OR_RETURN(MpiHandles handles, MpiHandles::Parse(options.mpi));
  WiredMpi wired;
  MpiRows& rows = wired.rows;
  rows.library = first;
  rows.messages = first + 1;
  rows.collectives = MpiCollectivesFrom(options.mpi_collectives);
  rows.is_default = options.backend.starts_with("mpi") || options.backend.starts_with("nccl,mpi");
  rows.dtypes = Known<kDTypeCount>(handles.dtypes);
  rows.ops = Known<std::tuple_size_v<decltype(rows.ops)>>(handles.ops);
  const Deadline deadline = After(std::chrono::milliseconds(options.connect_timeout_ms));
  RABIT_ASSIGN_OR_RETURN(
      std::shared_ptr<MpiJob> job,
      MpiJob::Open(std::move(handles),
                   {options.rank, options.size, options.streams(), connections.spin_us, deadline}));
  // One rank without shared memory, or with another setting, and all do without: they must agree
  // on what runs where.
  RABIT_ASSIGN_OR_RETURN(rows.shares_hosts, job->IsTrueOnAll(CanShareMemory(options, connections)));
  const Topology& topology = connections.topology;
  wired.backends.push_back(std::make_unique<MpiBackend>(
      job, rows.shares_hosts,
      [topology, meets = is_always || !rows.shares_hosts](const Group& group) {
        return meets || CountHosts(topology, group) > 1;
      }));
  RABIT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> messages,
                         BuiltinBackend::Create(MakeMpiTransport(job), topology, "mpi.messages"));
  wired.backends.push_back(std::move(messages));
  const std::vector<int>& hosts = topology.host_of;
  if (!rows.shares_hosts || std::set<int>(hosts.begin(), hosts.end()).size() == 1) return wired;
  rows.across = first + 2;
  RABIT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> across,
                         BuiltinBackend::Create(RouteByHost(connections, MakeMpiTransport(job)),
                                                topology, "mpi.across"));
  wired.backends.push_back(std::move(across));
  return wired;
}

}  // namespace rabit

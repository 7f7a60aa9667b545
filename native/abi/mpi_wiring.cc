#include "abi/mpi_wiring.h"

#include <chrono>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/mpi/mpi_backend.h"
#include "backend/mpi/mpi_transport.h"
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

Result<HostLinks> LinkHosts(const Connections& connections, std::shared_ptr<MpiJob> job,
                            const BuiltinOptions& builtin_options, Backend& builtin) {
  HostLinks links{connections.topology, builtin, nullptr};
  const std::vector<int>& hosts = links.topology.host_of;
  if (std::set<int>(hosts.begin(), hosts.end()).size() == 1) return links;
  std::unique_ptr<Transport> routed = RouteByHost(connections, MakeMpiTransport(std::move(job)));
  RABIT_ASSIGN_OR_RETURN(
      links.across, BuiltinBackend::Create(std::move(routed), links.topology, builtin_options));
  return links;
}

}  // namespace

Result<std::unique_ptr<Backend>> WireMpi(const Options& options, const Connections& connections,
                                         const BuiltinOptions& builtin_options, Backend& builtin) {
  RABIT_ASSIGN_OR_RETURN(MpiHandles handles, MpiHandles::Parse(options.mpi));
  const Deadline deadline = After(std::chrono::milliseconds(options.connect_timeout_ms));
  RABIT_ASSIGN_OR_RETURN(
      std::shared_ptr<MpiJob> job,
      MpiJob::Open(std::move(handles), {options.rank, options.size, options.started_lanes() + 1,
                                        connections.spin_us, deadline}));
  RABIT_ASSIGN_OR_RETURN(
      std::unique_ptr<BuiltinBackend> messages,
      BuiltinBackend::Create(MakeMpiTransport(job), connections.topology, builtin_options));
  // One rank without shared memory, or with another setting, and all do without: they must agree
  // on what runs where.
  RABIT_ASSIGN_OR_RETURN(const bool shares_memory,
                         job->IsTrueOnAll(CanShareMemory(options, connections)));
  std::optional<HostLinks> links;
  if (shares_memory) {
    RABIT_ASSIGN_OR_RETURN(HostLinks found, LinkHosts(connections, job, builtin_options, builtin));
    links.emplace(std::move(found));
  }
  MpiOptions mpi;
  mpi.collectives = MpiCollectivesFrom(options.mpi_collectives);
  mpi.is_default = options.backend.starts_with("mpi");
  mpi.is_deterministic = options.deterministic;
  return std::unique_ptr<Backend>(
      std::make_unique<MpiBackend>(std::move(job), std::move(messages), mpi, std::move(links)));
}

}  // namespace rabit

#include "base/group.h"

namespace rabit {

Topology Topology::Alike(std::vector<int> host_of, const Processors& processors) {
  Topology topology;
  for (const int host : host_of) {
    const auto hosts = static_cast<size_t>(host) + 1;
    if (topology.cores_of.size() < hosts) topology.cores_of.resize(hosts);
  }
  for (size_t host = 0; host < topology.cores_of.size(); ++host) {
    const auto ranks = std::count(host_of.begin(), host_of.end(), static_cast<int>(host));
    topology.cores_of[host] = ShareCores(std::vector<Processors>(ranks, processors));
  }
  topology.host_of = std::move(host_of);
  return topology;
}

}  // namespace rabit

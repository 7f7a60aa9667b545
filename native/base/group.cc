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

std::string RankList(std::span<const int> ascending) {
  std::string text;
  for (size_t i = 0; i < ascending.size();) {
    size_t end = i + 1;
    while (end < ascending.size() && ascending[end] == ascending[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += std::to_string(ascending[i]);
    if (end - i == 2) text += ", " + std::to_string(ascending[end - 1]);
    if (end - i > 2) text += "-" + std::to_string(ascending[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace rabit

#include "backend/ps/link_shares.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace rabit {
namespace {

constexpr double kShareLeast = 1e-9;

// How a link fills: with m + slope * x.
int SlopeOf(const LinkHost& host, int workers) {
  return workers - 2 * host.workers + host.copies;
}

// When the last link is done, in tensors over the unit of bandwidth, at the earliest.
double LeastTime(std::span<const LinkHost> hosts, int workers) {
  double least = 0;
  bool has_sink = false;        // a host that gains, or loses nothing, by summing more
  double weight = 1, rate = 0;  // of all others: how much they sum in a time is rate * time - weight + 1
  for (const LinkHost& host : hosts) {
    const int slope = SlopeOf(host, workers);
    const int always = slope < 0 ? host.workers + slope : host.workers;
    least = std::max(least, always / host.bandwidth);
    has_sink = has_sink || slope <= 0;
    if (slope <= 0) continue;
    weight += static_cast<double>(host.workers) / slope;
    rate += host.bandwidth / slope;
  }
  return has_sink ? least : std::max(least, weight / rate);
}

// The part that a host must sum for its link to be done in `time`, and the part that it may sum.
struct Range {
  double least = 0;
  double most = 1;
};

Range RangeOf(const LinkHost& host, int workers, double time) {
  const int slope = SlopeOf(host, workers);
  if (slope == 0) return {};
  const double part = std::clamp((time * host.bandwidth - host.workers) / slope, 0.0, 1.0);
  return slope > 0 ? Range{0, part} : Range{part, 1};
}

}  // namespace

std::vector<double> HostShares(std::span<const LinkHost> hosts) {
  int workers = 0;
  for (const LinkHost& host : hosts) workers += host.workers;
  const double time = LeastTime(hosts, workers);
  std::vector<Range> ranges;
  std::vector<double> shares;
  for (const LinkHost& host : hosts) {
    ranges.push_back(RangeOf(host, workers, time));
    shares.push_back(ranges.back().least);
  }
  double left = 1 - std::accumulate(shares.begin(), shares.end(), 0.0);
  for (const bool has_workers : {false, true}) {
    double room = 0;
    for (size_t i = 0; i < hosts.size(); ++i) {
      if ((hosts[i].workers > 0) == has_workers) room += ranges[i].most - ranges[i].least;
    }
    if (room <= 0 || left <= 0) continue;
    const double given = std::min(left, room);
    for (size_t i = 0; i < hosts.size(); ++i) {
      if ((hosts[i].workers > 0) != has_workers) continue;
      shares[i] += (ranges[i].most - ranges[i].least) * given / room;
    }
    left -= given;
  }
  // What is missing to 1, and parts that nobody would notice, come of rounding.
  for (double& share : shares) share = share < kShareLeast ? 0 : share;
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

Places Places::Alike(int workers, int servers) {
  Places places{workers, std::vector<int>(static_cast<size_t>(workers + servers)), {}};
  std::iota(places.host_of.begin(), places.host_of.end(), 0);
  places.bandwidth_of.assign(places.host_of.size(), 1.0);
  return places;
}

std::vector<double> SharesOf(const Places& places, std::span<const int> members) {
  std::vector<LinkHost> hosts;
  for (const double bandwidth : places.bandwidth_of) hosts.push_back({0, bandwidth});
  std::vector<int> summing;  // processes, members first
  for (const int member : members) {
    ++hosts[static_cast<size_t>(places.host_of[static_cast<size_t>(member)])].workers;
    summing.push_back(member);
  }
  std::vector<int> servers_at(hosts.size());
  for (int server = 0; server < places.servers(); ++server) {
    summing.push_back(places.workers + server);
    ++servers_at[static_cast<size_t>(places.host_of[static_cast<size_t>(summing.back())])];
  }
  // Hosts without a process that could sum take no part.
  std::vector<LinkHost> taking;
  std::vector<size_t> number_of(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i) {
    number_of[i] = taking.size();
    if (hosts[i].workers + servers_at[i] == 0) continue;
    taking.push_back(hosts[i]);
    // Ranks are lost with the job, so nobody has copies of what they sum.
    if (servers_at[i] > 0) taking.back().copies = places.replicas - 1;
  }
  const std::vector<double> of_host = HostShares(taking);
  std::vector<double> shares;
  for (const int process : summing) {
    const auto host = static_cast<size_t>(places.host_of[static_cast<size_t>(process)]);
    const bool is_server = process >= places.workers;
    const int at_host = servers_at[host] > 0 ? servers_at[host] : hosts[host].workers;
    const bool sums = is_server || servers_at[host] == 0;
    shares.push_back(sums ? of_host[number_of[host]] / at_host : 0.0);
  }
  return shares;
}

}  // namespace rabit

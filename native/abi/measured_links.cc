#include "abi/measured_links.h"

#include <algorithm>

#include "collective/flow_rates.h"

namespace rabit {
namespace {

// Of numbers that every processor and library has alike.
constexpr double kHalfStep = 1.0905077326652577, kStep = 1.189207115002721;

// The process of each host that sends and receives for it.
std::vector<int> SpeakersOf(const Places& places) {
  std::vector<int> speakers(places.bandwidth_of.size(), -1);
  for (size_t process = 0; process < places.host_of.size(); ++process) {
    int& speaker = speakers[static_cast<size_t>(places.host_of[process])];
    if (speaker < 0) speaker = static_cast<int>(process);
  }
  return speakers;
}

}  // namespace

std::vector<double> InSteps(std::vector<double> rates) {
  const double least = *std::min_element(rates.begin(), rates.end());
  for (double& rate : rates) {
    double near = least;
    while (near * kHalfStep < rate) near *= kStep;
    rate = near;
  }
  return rates;
}

Result<std::vector<double>> MeasureLinks(Transport& endpoints, const Places& places,
                                         Deadline deadline, double round_seconds) {
  const std::vector<int> speakers = SpeakersOf(places);
  if (speakers.size() <= 1) return std::vector<double>{1};
  std::vector<Flow> flows;
  for (size_t host = 0; host < speakers.size(); ++host) {
    for (const int peer : speakers) {
      if (peer != speakers[host]) flows.push_back({static_cast<int>(host), speakers[host], peer});
    }
  }
  Scratch scratch;
  const CollectiveCall call{endpoints, MakeTag(0, 1), deadline, scratch};
  RABIT_RETURN_IF_ERROR(MeasureFlows(call, flows, round_seconds));
  std::vector<double> rates(speakers.size());
  for (const Flow& flow : flows) rates[static_cast<size_t>(flow.round)] += flow.bytes_per_second;
  return InSteps(std::move(rates));
}

}  // namespace rabit

// MeasuredLinks: what the links of the hosts carry, found by sending over them.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/ps/link_shares.h"
#include "base/bytes.h"
#include "base/result.h"
#include "rendezvous/store.h"
#include "transport/transport.h"

namespace rabit {

struct RateProbe {
  std::chrono::milliseconds least{100};  // a shorter one says little: buffers on the way hide the rate
  int messages_most = 4096;              // to each peer
};

// One host after another sends to all others it knows, for some 100 ms; so hosts that share a switch do
// not share it now.  Every process of `places` calls it, whose number is its rank in `endpoints`, before
// anything else is sent.  `servers_meet`: servers have connections with each other.  What is told is under
// keys of `store` that begin with `prefix`.  Returns by host how many bytes per second its link carries,
// as powers of the fourth root of 2: noise hardly changes how many times the slowest one it is.  Equal on all
// processes; 1 where there is one host.
Result<std::vector<double>> MeasureLinks(Transport& endpoints, const Places& places,
                                         bool servers_meet, Store& store, std::string_view prefix,
                                         Deadline deadline, const RateProbe& probe = {});

// What of `rates` is told to all, in factors of the fourth root of 2: the least, then for each how far above.
std::string RecordOfRates(std::span<const double> rates);
Result<std::vector<double>> RatesFromRecord(std::string_view record, size_t hosts);

}  // namespace rabit

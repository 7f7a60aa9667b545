// The contract of transport/transport.h as tests, run against every implementation.
//
//   namespace {
//   TransportSet MakeInproc(int size) { … }
//   const int kRegistered = RegisterTransportConformance({.suite = "InprocTransport",
//                                                         .make = MakeInproc});
//   }
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace rabit::testing {

// The connected transports of one job, by rank.
struct TransportSet {
  std::shared_ptr<void> support;  // what they borrow; destroyed after them
  std::vector<std::unique_ptr<Transport>> ranks;
};

struct TransportFactory {
  std::string suite;
  // Called by each test; the transports carry at least four streams.  May return an empty set after
  // ADD_FAILURE.
  std::function<TransportSet(int size)> make;
};

// Adds one test per case of the suite.  Call it from the initialiser of a static constant.
int RegisterTransportConformance(TransportFactory factory);

}  // namespace rabit::testing

// Wiring of the NCCL backend: whether every rank can have it.
#pragma once

#include <memory>
#include <string>

#include "abi/connections.h"
#include "abi/options.h"
#include "backend/backend.h"
#include "base/result.h"

namespace rabit {

struct WiredNccl {
  std::unique_ptr<Backend> backend;  // null: none
  std::string unavailable;           // why not
};

// Collective, where option backend names nccl, or auto.  Starts the driver of the devices.  Without
// auto, a rank that lacks anything fails the start of all.
Result<WiredNccl> WireNccl(const Options& options, const Connections& connections);

}  // namespace rabit

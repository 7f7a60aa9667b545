// Wiring of the MPI backend: what of MPI and of shared memory it stands on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "abi/connections.h"
#include "abi/options.h"
#include "backend/backend.h"
#include "base/result.h"
#include "route/mpi_rows.h"

namespace rabit {

struct WiredMpi {
  std::vector<std::unique_ptr<Backend>> backends;
  MpiRows rows;
};

// Collective.  The backends take the places from `first` on.  `is_always`: also groups that could
// do without MPI may be routed to it.  Waits until all ranks have come, at most connect_timeout_ms.
Result<WiredMpi> WireMpi(const Options& options, const Connections& connections, int32_t first,
                         bool is_always);

}  // namespace rabit

// Wiring of the MPI backend: what of MPI and of shared memory it stands on.
#pragma once

#include <memory>

#include "abi/connections.h"
#include "abi/options.h"
#include "backend/builtin/builtin_backend.h"
#include "base/result.h"

namespace rabit {

// Collective.  `builtin` runs the groups whose ranks share a host, if memory is shared there, and
// must outlive the backend.  Waits until all ranks have come, at most connect_timeout_ms.
Result<std::unique_ptr<Backend>> WireMpi(const Options& options, const Connections& connections,
                                         const BuiltinOptions& builtin_options, Backend& builtin);

}  // namespace rabit

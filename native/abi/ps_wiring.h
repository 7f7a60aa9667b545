// How workers and summation servers find each other.
#pragma once

#include <memory>

#include "abi/connections.h"
#include "abi/options.h"
#include "backend/ps/ps_backend.h"
#include "base/result.h"

namespace rabit {

// The backend `ps` of this rank, connected to every server.  The connections are those of the
// ranks, and outlive it.
Result<std::unique_ptr<PsBackend>> WirePs(const Options& options, const Connections& connections);

// The life of a server, whose number `rank` is: serves the ranks that meet at the store, and those
// that meet there after them.  Returns when the store is gone; an error if it is no use to go on.
Status ServeJobs(const Options& options);

}  // namespace rabit

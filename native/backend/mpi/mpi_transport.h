// MpiTransport: messages between ranks, carried by MPI.
#pragma once

#include <memory>

#include "backend/mpi/mpi_job.h"
#include "transport/transport.h"

namespace rabit {

// The builtin algorithms run over it unchanged.  They are used where MPI's own collectives do not
// do what this library promises: 16-bit floats, bool, NaN in a minimum, more than 2^31 bytes, sums
// in rank order.  A receive that is cancelled is over; a send that is cancelled before the peer has
// posted its receive may still be read by MPI, because MPI cannot take it back.
std::unique_ptr<Transport> MakeMpiTransport(std::shared_ptr<MpiJob> job);

}  // namespace rabit

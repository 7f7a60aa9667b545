// CollectiveCall: what every collective needs besides its data.
#pragma once

#include "base/bytes.h"
#include "collective/scratch.h"
#include "transport/transport.h"

namespace rabit {

// The transport's ranks are the members of the collective (see transport/group_transport.h).
// Everything borrowed, for the duration of the call.
struct CollectiveCall {
  Transport& transport;
  Tag tag;  // the low kTagStepBits are zero and free for the collective
  Deadline deadline;
  Scratch& scratch;

  int rank() const { return transport.rank(); }
  int size() const { return transport.size(); }
};

// Peers that are `step` after and before `rank` on the circle.
inline int Next(int rank, int step, int size) { return (rank + step) % size; }
inline int Previous(int rank, int step, int size) { return (rank - step + size) % size; }

}  // namespace rabit

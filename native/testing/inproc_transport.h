// InprocFabric: ranks are threads of one process.  Used by most tests and by simulation.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace rabit::testing {

class InprocFabricState;

// `size` ranks that reach each other through memory.  Rendezvous: a Send finishes when its Recv has
// been posted, and the bytes are copied once, straight from the sender's buffer to the receiver's,
// by whichever side comes second.  The fabric and its transports may be destroyed in any order.
// Thread-safe.
class InprocFabric {
 public:
  explicit InprocFabric(int size);

  // The transport of `rank`; once per rank.  Destroying it fails the operations that other ranks
  // still have with it (kPeerLost, culprit = rank).
  std::unique_ptr<Transport> Connect(int rank);

  // Two ranks that live do not reach each other any more: all operations between them fail, as if
  // the other one were lost.
  void Cut(int a, int b);

 private:
  std::shared_ptr<InprocFabricState> state_;
};

}  // namespace rabit::testing

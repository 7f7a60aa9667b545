// Handshake: how the ranks of one host find each other and swap their inboxes.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "transport/connect.h"
#include "transport/shm/inbox.h"
#include "transport/shm/shm_transport.h"

namespace rabit {

// A rank of this host that is to be met, and the inbox that it writes to.
struct ShmInvitation {
  int rank = -1;
  const Inbox* inbox = nullptr;
};

// Who meets: each of the invited with this rank and all the others, or only pairs that a tree
// joins.
enum class ShmMeeting { kAll, kNeighbours };

// What the ranks of a host must agree on.
struct ShmAgreement {
  InboxShape shape;
  SingleCopy single_copy = SingleCopy::kAuto;
};

struct ShmPeer {
  int rank = -1;
  int pid = 0;
  UniqueFd connection;  // a Unix socket (SOCK_SEQPACKET, non-blocking)
  Inbox inbox;
  bool wants_offers = false;  // reads our long messages by process_vm_readv; tried for real
};

// Passes an inbox to each of `invited` (ascending) and maps theirs; in that order.  `purpose` keeps
// several meetings of one job apart.  Blocks.
Result<std::vector<ShmPeer>> MeetShmPeers(const ConnectContext& context,
                                          const std::vector<ShmInvitation>& invited,
                                          std::string_view purpose, ShmMeeting meeting,
                                          const ShmAgreement& agreement);

}  // namespace rabit

// Handshake: how the ranks of one host find each other and swap their inboxes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "transport/connect.h"
#include "transport/shm/inbox.h"
#include "transport/shm/shm_transport.h"

namespace rabit {

using ShmToken = std::array<uint8_t, 16>;

// A connected Unix socket (SOCK_SEQPACKET, non-blocking) to another rank of this host.
struct ShmSocket {
  int rank = -1;
  UniqueFd fd;
  ShmToken mine{};    // what the peer must show
  ShmToken theirs{};  // what it wants to see
};

// Who meets: each of `peers` with this rank and all the others, or only pairs that a tree joins.
enum class ShmMeeting { kAll, kNeighbours };

// One per rank in `peers` (ascending).  `purpose` keeps several meetings of one job apart.  Blocks.
Result<std::vector<ShmSocket>> ConnectShmSockets(const ConnectContext& context,
                                                 const std::vector<int>& peers,
                                                 std::string_view purpose, ShmMeeting meeting);

// What the ranks of a host must agree on.
struct ShmAgreement {
  int rank = 0;
  uint64_t epoch = 0;
  InboxShape shape;
  SingleCopy single_copy = SingleCopy::kAuto;
};

struct ShmPeer {
  int rank = -1;
  int pid = 0;
  UniqueFd connection;
  Inbox inbox;
  bool wants_offers = false;  // reads our long messages by process_vm_readv; tried for real
};

// Passes our inbox to every peer and maps theirs.  Blocks.
Result<std::vector<ShmPeer>> SwapInboxes(std::vector<ShmSocket> sockets, const Inbox& mine,
                                         const ShmAgreement& agreement, Deadline deadline);

}  // namespace rabit

// ShmChannel: control messages between neighbours of one host, through shared memory, on top of a
// channel that reaches all neighbours.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "base/spin_times.h"
#include "transport/channel.h"
#include "transport/connect.h"
#include "transport/rank_tree.h"
#include "transport/shm/inbox.h"

namespace rabit {

struct ShmChannelOptions {
  // How long Receive looks before it sleeps, at most; it adapts to whether that pays off.
  SpinTimes spin;
  // Of the channel beneath; -1: a star's.
  int neighbours = -1;
};

// The memory that this rank shares with another for control messages.
struct ShmChannelPeer {
  int rank = -1;
  Inbox mine;    // what the peer writes and this rank reads
  Inbox theirs;  // the other way round
};

// Waits until this rank and its neighbours of the same host have met; without any returns
// `beneath`.
//
// What goes through shared memory costs no system call while the receiver looks.  The channel
// beneath carries the rest: everything to and from ranks without shared memory, messages for which
// there is no room, a byte-less message that wakes a receiver which sleeps, and the news of a
// death.
Result<std::unique_ptr<Channel>> ConnectShmChannel(const ConnectContext& context,
                                                   const RankTree& tree,
                                                   std::unique_ptr<Channel> beneath,
                                                   const ShmChannelOptions& options);

// The same over memory that is shared already.
std::unique_ptr<Channel> MakeShmChannel(std::unique_ptr<Channel> beneath,
                                        std::vector<ShmChannelPeer> peers,
                                        const ShmChannelOptions& options);

// Of each of the two inboxes.
InboxShape ShmChannelShape();

}  // namespace rabit

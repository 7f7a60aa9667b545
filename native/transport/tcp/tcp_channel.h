// TcpChannel: the channel between processes.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "transport/channel.h"
#include "transport/channel_options.h"
#include "transport/connect.h"
#include "transport/rank_tree.h"

namespace rabit {

// A rank waits for its children on its listener, looks its parent's address up in the store and
// dials.  Returns on every rank when all have come, or at the context's deadline with the ranks
// that are missing.  The channel's destructor flushes, says goodbye and so leaves without being
// taken for dead.
Result<std::unique_ptr<Channel>> ConnectTcpChannel(const ConnectContext& context,
                                                   const RankTree& tree,
                                                   const ChannelOptions& options);

// A connected, authenticated, non-blocking stream to `rank`.
struct ChannelConnection {
  int rank = -1;
  UniqueFd fd;
};

// The same from connections that exist: of the children, whose ranks are higher, and the parent.
Result<std::unique_ptr<Channel>> MakeTcpChannel(int rank, int size,
                                                std::vector<ChannelConnection> connections,
                                                const ChannelOptions& options, Deadline deadline);

}  // namespace rabit

// TcpChannel: the channel between processes.
#pragma once

#include <memory>

#include "base/result.h"
#include "transport/channel.h"
#include "transport/channel_options.h"
#include "transport/connect.h"
#include "transport/rank_tree.h"

namespace rabit {

// Messages travel over the same links as data: a connection that breaks and a frame that arrives
// corrupt lose nothing.  A rank waits for its children on its listener, looks its parent's address
// up in the store and dials.  Returns on every rank when all have come, or at the context's
// deadline with the ranks that are missing.  The channel's destructor flushes, says goodbye and so
// leaves without being taken for dead.
Result<std::unique_ptr<Channel>> ConnectTcpChannel(const ConnectContext& context,
                                                   const RankTree& tree,
                                                   const ChannelOptions& options);

}  // namespace rabit

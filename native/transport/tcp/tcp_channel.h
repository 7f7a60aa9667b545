// TcpChannel: the channel between processes.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "transport/channel.h"
#include "transport/channel_options.h"
#include "transport/connect.h"

namespace rabit {

// Rank 0 waits for every other rank on its listener; the others look rank 0's address up in the
// store and dial.  Returns on every rank when all have come, or at the context's deadline with the
// ranks that are missing.  The channel's destructor flushes, says goodbye and so leaves without
// being taken for dead.
Result<std::unique_ptr<Channel>> ConnectTcpChannel(const ConnectContext& context,
                                                   const ChannelOptions& options);

// A connected, authenticated, non-blocking stream to `rank`.
struct ChannelConnection {
  int rank = -1;
  UniqueFd fd;
};

// The same from connections that exist: every other rank's on rank 0, rank 0's on the others.
Result<std::unique_ptr<Channel>> MakeTcpChannel(int rank, int size,
                                                std::vector<ChannelConnection> connections,
                                                const ChannelOptions& options, Deadline deadline);

}  // namespace rabit

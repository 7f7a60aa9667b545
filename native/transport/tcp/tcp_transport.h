// The TCP transport: IPv4 and IPv6, checked, and restored when a connection breaks (decision D12,
// docs/contribute/decisions/0003-tcp-frames-and-acknowledgements.md).
#pragma once

#include <memory>

#include "base/result.h"
#include "transport/connect.h"
#include "transport/tcp/tcp_options.h"
#include "transport/transport.h"

namespace rabit {

// Connects this rank with every peer (or options.peers), one link per stream: the higher rank dials
// the lower one at the address that is in the store under "<epoch>/address/<rank>".  Every rank
// must call it; blocks until all links are up, or names the ranks that are missing (kTimedOut). The
// listener, store and topology must outlive the transport; the transport must outlive its
// operations.  Its destructor tells the peers goodbye and waits (options.linger) until they have
// confirmed everything that was sent.
Result<std::unique_ptr<Transport>> ConnectTcpTransport(const ConnectContext& context,
                                                       const TcpOptions& options);

}  // namespace rabit

// Sockets: resolve, listen, connect, and whole reads and writes with a deadline.  Every descriptor
// made here is non-blocking and close-on-exec.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rabit {

// An IPv4 or IPv6 address as the kernel takes it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  int family() const { return storage.ss_family; }
  std::string ToString() const;  // "127.0.0.1:80", "[::1]:80"
};

// "host:port", "1.2.3.4:port" or "[::1]:port".  All addresses of the name, in the order to try
// them.  May ask a name server and thus block for seconds; never for a literal.
Result<std::vector<SocketAddress>> Resolve(std::string_view address);

// A listening socket on `address`; port 0 takes a free one (see LocalAddress).  A port in use is
// kResourceExhausted and names it.
Result<UniqueFd> Listen(const SocketAddress& address, int backlog);
Result<SocketAddress> LocalAddress(int fd);
// "unknown" if it cannot be told.
std::string RemoteAddressText(int fd);

// kPeerLost: nobody listens there (yet), worth another try; kTimedOut: the deadline.
// `is_refused`: set to whether the host itself says that nobody listens.
Result<UniqueFd> Connect(const SocketAddress& address, Deadline deadline,
                         bool* is_refused = nullptr);

// Finish the whole buffer or say why not: kPeerLost if the peer closed, kTimedOut at the deadline.
Status ReadFull(int fd, Bytes buffer, Deadline deadline);
Status WriteFull(int fd, ConstBytes buffer, Deadline deadline);  // never raises SIGPIPE

// kTimedOut at the deadline.
Status WaitReadable(int fd, Deadline deadline);
Status WaitWritable(int fd, Deadline deadline);

// Whether both ends of a TCP connection have the same address, as on loopback.
bool IsWithinHost(int fd);
// Reno, which every kernel has, in place of what the host says.  BBR, the default of some hosts,
// paces: within a host, where nothing is congested, it halves the bandwidth and may hold a small
// message back.
void TakeReno(int fd);

// TCP_NODELAY; nothing on a Unix socket.
Status SetNoDelay(int fd);
// The kernel gives a silent peer up after about `silence`, with or without unsent data
// (keepalive and TCP_USER_TIMEOUT); nothing on a Unix socket.
Status SetPeerTimeout(int fd, std::chrono::milliseconds silence);

// "Connection refused (111)".
std::string ErrnoText(int error_number);

// Milliseconds for poll(): rounded up, 0 if past, capped at a day.
int PollTimeoutMs(Deadline deadline);

}  // namespace rabit

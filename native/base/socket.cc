#include "base/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

namespace rabit {
namespace {

Status SystemError(std::string what, int error_number, std::string advice) {
  std::string text = std::move(what) + ": " + ErrnoText(error_number) + "; " + advice;
  switch (error_number) {
    case EADDRINUSE:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return ResourceExhausted(std::move(text));
    case EADDRNOTAVAIL:
    case EACCES:
    case EPERM:
    case EAFNOSUPPORT:
      return InvalidArgument(std::move(text));
    default:
      return Internal(std::move(text));
  }
}

// Splits "host:port" and "[host]:port"; false if the form is neither.
bool SplitHostPort(std::string_view address, std::string& host, std::string& port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  std::string_view name = address.substr(0, colon);
  const std::string_view digits = address.substr(colon + 1);
  if (name.front() == '[') {
    if (name.size() < 3 || name.back() != ']') return false;
    name = name.substr(1, name.size() - 2);
  } else if (name.find(':') != std::string_view::npos) {
    return false;  // an IPv6 address needs its brackets
  }
  if (digits.empty() || digits.size() > 5) return false;
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return false;
  }
  host = name;
  port = digits;
  return std::stoi(port) <= 65535;
}

Status WaitFor(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, PollTimeoutMs(deadline));
    if (ready > 0) return {};
    if (ready == 0) {
      if (std::chrono::steady_clock::now() < deadline) continue;  // a timeout over the cap
      return TimedOut("the peer at " + RemoteAddressText(fd) + " did not " +
                      (events == POLLIN ? "send" : "take") + " data before the deadline");
    }
    if (errno != EINTR) return SystemError("cannot poll a socket", errno, "report this");
  }
}

Status SetOption(int fd, int level, int option, int value, const char* name) {
  if (::setsockopt(fd, level, option, &value, sizeof value) == 0) return {};
  return SystemError(std::string("cannot set ") + name, errno,
                     "report this with your kernel's version");
}

bool IsTcp(int fd) {
  int family = 0;
  socklen_t bytes = sizeof family;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 &&
         (family == AF_INET || family == AF_INET6);
}

Status ConnectError(const SocketAddress& address, int error_number) {
  const std::string what = "cannot connect to " + address.ToString();
  switch (error_number) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ETIMEDOUT:
      return Status(Code::kPeerLost, what + ": " + ErrnoText(error_number) +
                                         "; is the process there running, and does a firewall "
                                         "let this port through?");
    default:
      return SystemError(what, error_number, "check the address");
  }
}

Status PeerClosed(int fd) {
  return Status(Code::kPeerLost, "the peer at " + RemoteAddressText(fd) + " closed the connection");
}

Status TransferError(int fd, int error_number) {
  if (error_number == EPIPE || error_number == ECONNRESET) return PeerClosed(fd);
  return Status(Code::kPeerLost, "the connection to " + RemoteAddressText(fd) +
                                     " failed: " + ErrnoText(error_number));
}

// The strerror_r of glibc returns the text; that of POSIX, which musl has, fills the buffer.
[[maybe_unused]] std::string TextOf(const char* text, const char*) { return text; }
[[maybe_unused]] std::string TextOf(int, const char* buffer) { return buffer; }

}  // namespace

std::string ErrnoText(int error_number) {
  char buffer[128] = "";
  return TextOf(::strerror_r(error_number, buffer, sizeof buffer), buffer) + " (" +
         std::to_string(error_number) + ")";
}

int PollTimeoutMs(Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  if (left <= std::chrono::nanoseconds(0)) return 0;
  constexpr int64_t kDayMs = 86'400'000;
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
  // Rounded up: rounded down, the last fraction of a millisecond would be spent in a loop of calls
  // that return at once.
  return static_cast<int>(std::min(ms, kDayMs - 1)) + 1;
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    return std::string(text) + ":" + std::to_string(ntohs(in.sin_port));
  }
  if (family() == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
    ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
    const std::string scope = in.sin6_scope_id == 0 ? "" : "%" + std::to_string(in.sin6_scope_id);
    std::string shown("[");
    return shown.append(text).append(scope).append("]:").append(
        std::to_string(ntohs(in.sin6_port)));
  }
  return "unknown";
}

Result<std::vector<SocketAddress>> Resolve(std::string_view address) {
  std::string host;
  std::string port;
  if (!SplitHostPort(address, host, port)) {
    std::string text("'");
    return InvalidArgument(
        text.append(address).append("' is not an address; write host:port or [ipv6]:port"));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  int failure = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  // Numbers first: a name server that does not answer would hold up even an address that needs
  // none.
  if (failure == EAI_NONAME) {
    hints.ai_flags = AI_NUMERICSERV;
    failure = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  }
  if (failure != 0) {
    return InvalidArgument("host '" + host + "' does not resolve: " + ::gai_strerror(failure) +
                           "; check the spelling, /etc/hosts and the name server");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress one;
    std::memcpy(&one.storage, entry->ai_addr, entry->ai_addrlen);
    one.bytes = entry->ai_addrlen;
    addresses.push_back(one);
  }
  if (addresses.empty())
    return InvalidArgument("host '" + host + "' has no address of a known kind");
  return addresses;
}

Result<UniqueFd> Listen(const SocketAddress& address, int backlog) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) {
    return SystemError("cannot make a socket for " + address.ToString(), errno,
                       "raise the limit of open files or use another address family");
  }
  // Connections of an ended job may linger at the port for a minute; the next job must not wait for
  // that.
  RABIT_RETURN_IF_ERROR(SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  if (address.family() == AF_INET6) {
    // Interfaces of both families have one listener, at [::].  At any other address two listeners,
    // one for each family, may have the same port.
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    const int is_only = IN6_IS_ADDR_UNSPECIFIED(&ipv6.sin6_addr) ? 0 : 1;
    RABIT_RETURN_IF_ERROR(SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, is_only, "IPV6_V6ONLY"));
  }
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 ||
      ::listen(fd.get(), backlog) != 0) {
    const int error_number = errno;
    return SystemError("cannot listen on " + address.ToString(), error_number,
                       error_number == EADDRINUSE
                           ? "another process uses it: stop that process or use port 0"
                           : "use an address of this host");
  }
  return fd;
}

Result<SocketAddress> LocalAddress(int fd) {
  SocketAddress address;
  address.bytes = sizeof address.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    return SystemError("cannot read a socket's own address", errno, "report this");
  }
  return address;
}

std::string RemoteAddressText(int fd) {
  SocketAddress address;
  address.bytes = sizeof address.storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    return "unknown";
  }
  return address.ToString();
}

Result<UniqueFd> Connect(const SocketAddress& address, Deadline deadline, bool* is_refused) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) {
    return SystemError("cannot make a socket for " + address.ToString(), errno,
                       "raise the limit of open files or use another address family");
  }
  const auto* name = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(fd.get(), name, address.bytes) == 0) return fd;
  // Interrupted, the connection goes on being made in the kernel, like one that was not finished at
  // once.
  if (errno != EINPROGRESS && errno != EINTR) {
    if (is_refused != nullptr) *is_refused = errno == ECONNREFUSED;
    return ConnectError(address, errno);
  }
  if (Status status = WaitWritable(fd.get(), deadline); !status.ok()) {
    if (status.code() != Code::kTimedOut) return status;
    return TimedOut("connecting to " + address.ToString() + " took longer than the deadline; is " +
                    "the host up, and does a firewall let this port through?");
  }
  int error_number = 0;
  socklen_t bytes = sizeof error_number;
  // Writable says only that the attempt is over; this says how it ended.
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error_number, &bytes);
  if (is_refused != nullptr) *is_refused = error_number == ECONNREFUSED;
  if (error_number != 0) return ConnectError(address, error_number);
  return fd;
}

Status ReadFull(int fd, Bytes buffer, Deadline deadline) {
  while (!buffer.empty()) {
    // The socket itself may be a blocking one, and the deadline must hold all the same.
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) {
      buffer = buffer.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return PeerClosed(fd);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      RABIT_RETURN_IF_ERROR(WaitReadable(fd, deadline));
    } else if (errno != EINTR) {
      return TransferError(fd, errno);
    }
  }
  return {};
}

Status WriteFull(int fd, ConstBytes buffer, Deadline deadline) {
  while (!buffer.empty()) {
    // Without MSG_NOSIGNAL a peer that has gone would end the user's process by SIGPIPE.
    const ssize_t put = ::send(fd, buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) {
      buffer = buffer.subspan(static_cast<size_t>(put));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      RABIT_RETURN_IF_ERROR(WaitWritable(fd, deadline));
    } else if (errno != EINTR) {
      return TransferError(fd, errno);
    }
  }
  return {};
}

Status WaitReadable(int fd, Deadline deadline) { return WaitFor(fd, POLLIN, deadline); }
Status WaitWritable(int fd, Deadline deadline) { return WaitFor(fd, POLLOUT, deadline); }

bool IsWithinHost(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_bytes) != 0) return false;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_bytes) != 0) return false;
  if (here.ss_family != there.ss_family) return false;
  if (here.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(here).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(there).sin_addr.s_addr;
  }
  return here.ss_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(here).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(there).sin6_addr,
                     sizeof(in6_addr)) == 0;
}

void TakeReno(int fd) {
  constexpr std::string_view kReno = "reno";
  // Tuning only: a kernel that refuses it still carries the data.
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size());
}

Status SetNoDelay(int fd) {
  if (!IsTcp(fd)) return {};
  return SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
}

Status SetPeerTimeout(int fd, std::chrono::milliseconds silence) {
  if (!IsTcp(fd)) return {};
  const int ms = static_cast<int>(std::clamp<int64_t>(silence.count(), 1'000, 3'600'000));
  // Three probes have to fit in, and an acknowledgement that is lost once must not end the
  // connection.
  const int probe_seconds = std::max(1, ms / 4000);
  RABIT_RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  RABIT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_seconds, "TCP_KEEPIDLE"));
  RABIT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_seconds, "TCP_KEEPINTVL"));
  RABIT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT"));
  return SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, ms, "TCP_USER_TIMEOUT");
}

}  // namespace rabit

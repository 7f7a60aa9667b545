#include "transport/shm/handshake.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/socket.h"
#include "rendezvous/gathering.h"
#include "transport/shm/single_copy_trial.h"

namespace rabit {
namespace {

constexpr uint32_t kMagic = 0x4d534252;  // "RBSM"
constexpr uint32_t kVersion = 2;
constexpr std::chrono::seconds kStrangerTime{2};

struct Introduction {  // of the side that connects
  uint32_t magic;
  int32_t rank;
  ShmToken token;
};

struct Hello {
  uint32_t magic;
  uint32_t version;
  int32_t rank;
  int32_t senders;
  int32_t streams;
  uint32_t ring_bytes;
  int32_t pid;
  int32_t unused;
  uint64_t epoch;
  uint64_t probe_address;
  uint64_t probe_value;
  ShmToken token;
};

int PollMs(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 86'400'000));
}

Status WaitFor(int fd, short events, Deadline deadline, const std::string& what) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int n = poll(&entry, 1, PollMs(deadline));
    if (n > 0) return Status();
    if (n < 0 && errno != EINTR) return Internal("shm: poll failed: " + ErrnoText(errno));
    if (n == 0 && std::chrono::steady_clock::now() >= deadline) {
      return TimedOut("shm: waited for " + what +
                      " until the deadline; is that rank running on this host?");
    }
  }
}

std::string PeerText(int rank) { return "rank " + std::to_string(rank); }

// What a call on a socket that does not block returns when it need not wait.  It is tried first:
// of many peers most are ready by the time it is their turn.  errno is that of the call.
template <class Call>
Result<ssize_t> WhenReady(int fd, short events, Deadline deadline, const std::string& what,
                          Call call) {
  for (;;) {
    const ssize_t n = call();
    if (n >= 0 || (errno != EAGAIN && errno != EINTR)) return n;
    RABIT_RETURN_IF_ERROR(WaitFor(fd, events, deadline, what));
  }
}

bool IsEqual(const ShmToken& a, const ShmToken& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

std::string Hex(const ShmToken& token) {
  std::string text;
  for (uint8_t value : token) {
    text += "0123456789abcdef"[value >> 4];
    text += "0123456789abcdef"[value & 15];
  }
  return text;
}

bool FromHex(std::string_view text, ShmToken& token) {
  if (text.size() != 2 * token.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    token[i / 2] = static_cast<uint8_t>(token[i / 2] << 4 | digit);
  }
  return true;
}

Result<ShmToken> RandomToken() {
  ShmToken token{};
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return Internal("shm: no random numbers from the kernel: " + ErrnoText(errno));
  }
  return token;
}

bool IsOwnUser(int fd) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 &&
         credentials.uid == geteuid();
}

// The abstract name that belongs to a token.
socklen_t FillAddress(const ShmToken& token, sockaddr_un& address) {
  const std::string name = "rabit-" + Hex(token);
  address = sockaddr_un{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Result<UniqueFd> OpenSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) {
    return ResourceExhausted("shm: no Unix socket: " + ErrnoText(errno) +
                             "; raise the limit of open files");
  }
  return fd;
}

Result<UniqueFd> DialPeer(int rank, const ShmToken& name, Deadline deadline) {
  sockaddr_un address;
  const socklen_t bytes = FillAddress(name, address);
  for (;;) {
    RABIT_ASSIGN_OR_RETURN(UniqueFd fd, OpenSocket());
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0) {
      if (IsOwnUser(fd.get())) return fd;
      return PeerLost(rank, "shm: the socket of " + PeerText(rank) +
                                " belongs to another user; run all ranks as one user");
    }
    // EAGAIN: more ranks connect at once than the peer's queue holds.
    if (errno != EAGAIN && errno != EINTR) {
      return PeerLost(rank, "shm: cannot connect to " + PeerText(rank) + ": " + ErrnoText(errno) +
                                "; if the ranks run in separate network namespaces use "
                                "RABIT_TRANSPORT=tcp");
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return TimedOut("shm: " + PeerText(rank) + " took no connection before the deadline");
    }
    poll(nullptr, 0, 1);
  }
}

// What each of `peers` has published, in their order; publishes `mine`.
Result<std::vector<std::string>> TellNames(const ConnectContext& context,
                                           const std::vector<int>& peers, const std::string& prefix,
                                           ShmMeeting meeting, const std::string& mine) {
  if (meeting == ShmMeeting::kAll) {
    std::vector<int> ranks = peers;
    const auto place = std::lower_bound(ranks.begin(), ranks.end(), context.rank);
    const auto index = place - ranks.begin();
    ranks.insert(place, context.rank);
    const std::string key = prefix + "host" + std::to_string(ranks.front()) + "/";
    RABIT_ASSIGN_OR_RETURN(
        std::vector<std::string> names,
        GatherWords(context.store, key, ranks, context.rank, mine, context.deadline));
    names.erase(names.begin() + index);
    return names;
  }
  RABIT_RETURN_IF_ERROR(context.store.Set(prefix + std::to_string(context.rank), mine));
  std::vector<std::string> names;
  for (const int peer : peers) {
    RABIT_ASSIGN_OR_RETURN(names.emplace_back(),
                           context.store.Get(prefix + std::to_string(peer), context.deadline));
  }
  return names;
}

// Takes connections until every rank in `missing` has introduced itself.  Strangers are dropped.
Status AcceptPeers(int listener, const ShmToken& mine, std::vector<int> missing,
                   const ConnectContext& context, std::vector<ShmSocket>& sockets) {
  while (!missing.empty()) {
    RABIT_RETURN_IF_ERROR(context.Look());
    const Deadline next = std::min(context.deadline, After(kStartLookInterval));
    const Result<ssize_t> accepted = WhenReady(
        listener, POLLIN, next, PeerText(missing.front()),
        [&] { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
    if (accepted.status().code() == Code::kTimedOut &&
        std::chrono::steady_clock::now() < context.deadline) {
      continue;
    }
    if (!accepted.ok()) return accepted.status().WithCulprit(missing.front());
    UniqueFd fd(static_cast<int>(*accepted));
    if (!fd.is_open() || !IsOwnUser(fd.get())) continue;
    const Deadline patience = std::min(context.deadline, After(kStrangerTime));
    Introduction introduction{};
    const Result<ssize_t> introduced =
        WhenReady(fd.get(), POLLIN, patience, "an introduction",
                  [&] { return recv(fd.get(), &introduction, sizeof introduction, 0); });
    if (!introduced.ok() || *introduced != sizeof introduction) continue;
    if (introduction.magic != kMagic || !IsEqual(introduction.token, mine)) continue;
    auto found = std::find(missing.begin(), missing.end(), introduction.rank);
    if (found == missing.end()) continue;
    missing.erase(found);
    for (ShmSocket& socket : sockets) {
      if (socket.rank == introduction.rank) socket.fd = std::move(fd);
    }
  }
  return Status();
}

Status SendHello(const ShmSocket& socket, const Hello& hello, int inbox_fd, Deadline deadline) {
  iovec data{const_cast<Hello*>(&hello), sizeof hello};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &inbox_fd, sizeof inbox_fd);
  RABIT_ASSIGN_OR_RETURN(
      const ssize_t n, WhenReady(socket.fd.get(), POLLOUT, deadline, PeerText(socket.rank),
                                 [&] { return sendmsg(socket.fd.get(), &message, MSG_NOSIGNAL); }));
  if (n != sizeof hello) {
    return PeerLost(socket.rank, "shm: " + PeerText(socket.rank) +
                                     " went away while connecting: " + ErrnoText(errno));
  }
  return Status();
}

Status ReceiveHello(const ShmSocket& socket, Deadline deadline, Hello& hello, UniqueFd& inbox_fd) {
  iovec data{&hello, sizeof hello};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  RABIT_ASSIGN_OR_RETURN(const ssize_t n,
                         WhenReady(socket.fd.get(), POLLIN, deadline, PeerText(socket.rank), [&] {
                           return recvmsg(socket.fd.get(), &message, MSG_CMSG_CLOEXEC);
                         }));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    inbox_fd.reset(fd);
  }
  if (n != sizeof hello || !inbox_fd.is_open()) {
    return PeerLost(socket.rank, "shm: " + PeerText(socket.rank) + " went away while connecting (" +
                                     std::to_string(n) + " bytes came); see its own error");
  }
  return Status();
}

Status CheckHello(const Hello& hello, const ShmSocket& socket, const ShmAgreement& agreement) {
  if (hello.magic != kMagic || hello.version != kVersion || hello.epoch != agreement.epoch ||
      hello.rank != socket.rank || !IsEqual(hello.token, socket.mine)) {
    return Mismatch("shm: what answers for " + PeerText(socket.rank) + " is rank " +
                    std::to_string(hello.rank) + ", version " + std::to_string(hello.version) +
                    ", epoch " + std::to_string(hello.epoch) + "; here are version " +
                    std::to_string(kVersion) + " and epoch " + std::to_string(agreement.epoch) +
                    "; run the same version on every rank");
  }
  const InboxShape theirs{hello.senders, hello.streams, hello.ring_bytes};
  if (theirs != agreement.shape) {
    return Mismatch("shm: " + PeerText(socket.rank) + " has " + std::to_string(hello.streams) +
                    " streams and rings of " + std::to_string(hello.ring_bytes) +
                    " bytes, this rank " + std::to_string(agreement.shape.streams) + " and " +
                    std::to_string(agreement.shape.ring_bytes) +
                    "; use the same options on every rank");
  }
  return Status();
}

// Whether the peer is to offer us its long messages.
Result<bool> WantsOffers(std::optional<SingleCopyTrial>& trial, const Hello& peer,
                         SingleCopy mode) {
  if (!trial) return false;
  const Status status = trial->TryRead(peer.pid, peer.probe_address, peer.probe_value);
  if (status.ok()) return mode == SingleCopy::kOn || trial->IsFaster(peer.pid, peer.probe_address);
  if (mode == SingleCopy::kAuto) return false;
  return Unsupported("shm: the memory of " + PeerText(peer.rank) + " (process " +
                     std::to_string(peer.pid) + ") cannot be read: " + status.message() +
                     "; use shm_single_copy=auto or permit process_vm_readv");
}

}  // namespace

Result<std::vector<ShmSocket>> ConnectShmSockets(const ConnectContext& context,
                                                 const std::vector<int>& peers,
                                                 std::string_view purpose, ShmMeeting meeting) {
  RABIT_ASSIGN_OR_RETURN(const ShmToken name, RandomToken());
  RABIT_ASSIGN_OR_RETURN(const ShmToken token, RandomToken());
  RABIT_ASSIGN_OR_RETURN(UniqueFd listener, OpenSocket());
  sockaddr_un address;
  const socklen_t bytes = FillAddress(name, address);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      listen(listener.get(), 1024) != 0) {
    return Unsupported("shm: cannot listen on an abstract Unix socket: " + ErrnoText(errno) +
                       "; use RABIT_TRANSPORT=tcp");
  }
  RABIT_ASSIGN_OR_RETURN(
      const std::vector<std::string> all_published,
      TellNames(context, peers, std::to_string(context.epoch) + "/" + std::string(purpose) + "/",
                meeting, Hex(name) + Hex(token)));

  std::vector<ShmSocket> sockets;
  std::vector<int> missing;
  for (size_t i = 0; i < peers.size(); ++i) {
    const int peer = peers[i];
    const std::string& published = all_published[i];
    ShmSocket& socket = sockets.emplace_back();
    socket.rank = peer;
    socket.mine = token;
    ShmToken their_name{};
    if (published.size() != 4 * their_name.size() ||
        !FromHex(std::string_view(published).substr(0, 32), their_name) ||
        !FromHex(std::string_view(published).substr(32), socket.theirs)) {
      return Mismatch("shm: the store holds '" + published + "' for " + PeerText(peer) +
                      "; run the same version on every rank");
    }
    if (peer > context.rank) {
      missing.push_back(peer);
      continue;
    }
    RABIT_ASSIGN_OR_RETURN(socket.fd, DialPeer(peer, their_name, context.deadline));
    const Introduction introduction{kMagic, context.rank, socket.theirs};
    if (send(socket.fd.get(), &introduction, sizeof introduction, MSG_NOSIGNAL) !=
        sizeof introduction) {
      return PeerLost(peer, "shm: " + PeerText(peer) + " closed the connection: " +
                                ErrnoText(errno) + "; see its own error");
    }
  }
  RABIT_RETURN_IF_ERROR(AcceptPeers(listener.get(), token, std::move(missing), context, sockets));
  return sockets;
}

Result<std::vector<ShmPeer>> SwapInboxes(std::vector<ShmSocket> sockets, const Inbox& mine,
                                         const ShmAgreement& agreement, Deadline deadline) {
  // Half a megabyte, which nobody reads where there is no trial.
  std::optional<SingleCopyTrial> trial;
  if (agreement.single_copy != SingleCopy::kOff) {
    RABIT_ASSIGN_OR_RETURN(const ShmToken random, RandomToken());
    uint64_t trial_value = 0;
    std::memcpy(&trial_value, random.data(), sizeof trial_value);
    trial.emplace(trial_value);
  }
  for (const ShmSocket& socket : sockets) {
    Hello hello{};
    hello.magic = kMagic;
    hello.version = kVersion;
    hello.rank = agreement.rank;
    hello.senders = agreement.shape.senders;
    hello.streams = agreement.shape.streams;
    hello.ring_bytes = agreement.shape.ring_bytes;
    hello.pid = static_cast<int32_t>(getpid());
    hello.epoch = agreement.epoch;
    hello.probe_address = trial ? trial->address() : 0;
    hello.probe_value = trial ? trial->value() : 0;
    hello.token = socket.theirs;
    RABIT_RETURN_IF_ERROR(SendHello(socket, hello, mine.fd(), deadline));
  }

  std::vector<ShmPeer> peers;
  for (ShmSocket& socket : sockets) {
    Hello hello{};
    UniqueFd inbox_fd;
    RABIT_RETURN_IF_ERROR(ReceiveHello(socket, deadline, hello, inbox_fd));
    RABIT_RETURN_IF_ERROR(CheckHello(hello, socket, agreement));
    RABIT_ASSIGN_OR_RETURN(Inbox inbox, Inbox::Map(std::move(inbox_fd), agreement.shape));
    RABIT_ASSIGN_OR_RETURN(const bool wants_offers,
                           WantsOffers(trial, hello, agreement.single_copy));
    const uint8_t verdict = wants_offers ? 1 : 0;
    if (send(socket.fd.get(), &verdict, 1, MSG_NOSIGNAL) != 1) {
      return PeerLost(socket.rank, "shm: " + PeerText(socket.rank) + " went away while connecting");
    }
    peers.push_back({socket.rank, hello.pid, std::move(socket.fd), std::move(inbox), false});
  }

  for (ShmPeer& peer : peers) {
    uint8_t verdict = 0;
    RABIT_ASSIGN_OR_RETURN(const ssize_t n,
                           WhenReady(peer.connection.get(), POLLIN, deadline, PeerText(peer.rank),
                                     [&] { return recv(peer.connection.get(), &verdict, 1, 0); }));
    if (n != 1) {
      return PeerLost(peer.rank, "shm: " + PeerText(peer.rank) +
                                     " closed the connection while connecting; see its own error");
    }
    peer.wants_offers = verdict == 1 && agreement.single_copy != SingleCopy::kOff;
  }
  return peers;
}

}  // namespace rabit

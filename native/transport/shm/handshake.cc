#include "transport/shm/handshake.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "base/random.h"
#include "base/socket.h"
#include "rendezvous/gathering.h"
#include "transport/shm/single_copy_trial.h"

namespace rabit {
namespace {

constexpr uint32_t kMagic = 0x4d534252;  // "RBSM"
constexpr uint32_t kVersion = 3;
constexpr std::chrono::seconds kStrangerTime{2};

using ShmToken = std::array<uint8_t, 16>;

// Comes with the sender's inbox.  Of each pair the higher rank dials and says hello, the lower one
// answers with its own, and the dialer then says in one byte whether it wants offers.
struct Hello {
  uint32_t magic;
  uint32_t version;
  int32_t rank;
  int32_t senders;
  int32_t streams;
  uint32_t ring_bytes;
  int32_t pid;
  uint32_t wants_offers;  // in an answer: 1 if it does
  uint64_t epoch;
  uint64_t probe_address;
  uint64_t probe_value;
  ShmToken token;  // of the rank that it is said to
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
    // poll() may wake a millisecond early, so the clock decides.
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
  // Every byte is looked at, so that the time tells nobody how many were right.
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
  RABIT_RETURN_IF_ERROR(
      FillRandom(Bytes(reinterpret_cast<std::byte*>(token.data()), token.size())));
  return token;
}

bool IsOwnUser(int fd) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  // The kernel says who connected, or listens: any user of the host can reach an abstract name.
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 &&
         credentials.uid == geteuid();
}

// The abstract name that belongs to a token.
socklen_t FillAddress(const ShmToken& token, sockaddr_un& address) {
  const std::string name = "rabit-" + Hex(token);
  address = sockaddr_un{};
  address.sun_family = AF_UNIX;
  // The first byte of the path stays 0: an abstract name leaves no file behind if the process is
  // killed.
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

// What each of `invited` has published, in their order; publishes `mine`.
Result<std::vector<std::string>> TellNames(const ConnectContext& context,
                                           const std::vector<ShmInvitation>& invited,
                                           const std::string& prefix, ShmMeeting meeting,
                                           const std::string& mine) {
  if (meeting == ShmMeeting::kAll) {
    std::vector<int> ranks;
    for (const ShmInvitation& each : invited) ranks.push_back(each.rank);
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
  for (const ShmInvitation& each : invited) {
    RABIT_ASSIGN_OR_RETURN(names.emplace_back(),
                           context.store.Get(prefix + std::to_string(each.rank), context.deadline));
  }
  return names;
}

Status SendHello(int fd, int peer, const Hello& hello, int inbox_fd, Deadline deadline) {
  iovec data{const_cast<Hello*>(&hello), sizeof hello};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  // The descriptor of the inbox goes along with the hello: memory that has no name cannot be opened
  // by others.
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &inbox_fd, sizeof inbox_fd);
  RABIT_ASSIGN_OR_RETURN(const ssize_t n, WhenReady(fd, POLLOUT, deadline, PeerText(peer), [&] {
                           return sendmsg(fd, &message, MSG_NOSIGNAL);
                         }));
  if (n != sizeof hello) {
    return PeerLost(peer, "shm: " + PeerText(peer) + " went away while connecting: " +
                              ErrnoText(errno) + "; see its own error");
  }
  return Status();
}

Status ReceiveHello(int fd, int peer, Deadline deadline, Hello& hello, UniqueFd& inbox_fd) {
  iovec data{&hello, sizeof hello};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  // Room for one descriptor: the kernel closes what more a message brings.
  message.msg_controllen = CMSG_LEN(sizeof(int));
  RABIT_ASSIGN_OR_RETURN(const ssize_t n, WhenReady(fd, POLLIN, deadline, PeerText(peer), [&] {
                           return recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
                         }));
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message);
      header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof received);
    inbox_fd.reset(received);
  }
  if (n != sizeof hello || !inbox_fd.is_open()) {
    return PeerLost(peer, "shm: " + PeerText(peer) + " went away while connecting (" +
                              std::to_string(n) + " bytes came); see its own error");
  }
  return Status();
}

// Who is invited, with what it has published.
struct Guest {
  ShmInvitation invited;
  ShmToken name;   // where it listens
  ShmToken token;  // what shows that a hello is for it
};

// One rank's side of a meeting.
class Meeting {
 public:
  // trial: null without single copies.
  Meeting(const ConnectContext& context, const ShmAgreement& agreement, const ShmToken& token,
          SingleCopyTrial* trial)
      : context_(context), agreement_(agreement), token_(token), trial_(trial) {}

  Status Dial(const Guest& guest);
  // Takes connections until each of `missing` has said hello, and answers.  Strangers are dropped.
  Status AcceptAll(int listener, std::vector<Guest> missing);
  // Hears what is still to be said; the peers in ascending order.
  Result<std::vector<ShmPeer>> Finish();

 private:
  struct Connection {
    int rank;
    UniqueFd fd;
  };

  Status SendOwnHello(int fd, const Guest& guest, bool wants_offers) const;
  Status Check(const Hello& hello, int peer) const;
  // Whether `peer` is to offer us its long messages.
  Result<bool> WantsOffers(const Hello& peer) const;
  Status Answer(const Guest& guest, UniqueFd fd, const Hello& hello, UniqueFd inbox_fd);
  Result<ShmPeer> HearAnswer(Connection dialled) const;
  Status HearWish(ShmPeer& peer) const;

  const ConnectContext& context_;
  const ShmAgreement& agreement_;
  const ShmToken token_;  // of this rank
  SingleCopyTrial* const trial_;
  std::vector<Connection> dialled_;
  std::map<int, ShmPeer> answered_;  // by rank
};

Status Meeting::SendOwnHello(int fd, const Guest& guest, bool wants_offers) const {
  Hello hello{};
  hello.magic = kMagic;
  hello.version = kVersion;
  hello.rank = context_.rank;
  hello.senders = agreement_.shape.senders;
  hello.streams = agreement_.shape.streams;
  hello.ring_bytes = agreement_.shape.ring_bytes;
  hello.pid = static_cast<int32_t>(getpid());
  hello.wants_offers = wants_offers ? 1 : 0;
  hello.epoch = context_.epoch;
  if (trial_ != nullptr) {
    hello.probe_address = trial_->address();
    hello.probe_value = trial_->value();
  }
  // The token of the receiver, from the store: it shows that the sender can read this job's store.
  hello.token = guest.token;
  return SendHello(fd, guest.invited.rank, hello, guest.invited.inbox->fd(), context_.deadline);
}

Status Meeting::Check(const Hello& hello, int peer) const {
  if (hello.magic != kMagic || hello.version != kVersion || hello.epoch != context_.epoch ||
      hello.rank != peer || !IsEqual(hello.token, token_)) {
    return Mismatch("shm: what answers for " + PeerText(peer) + " is rank " +
                    std::to_string(hello.rank) + ", version " + std::to_string(hello.version) +
                    ", epoch " + std::to_string(hello.epoch) + "; here are version " +
                    std::to_string(kVersion) + " and epoch " + std::to_string(context_.epoch) +
                    "; run the same version on every rank");
  }
  const InboxShape theirs{hello.senders, hello.streams, hello.ring_bytes};
  if (theirs != agreement_.shape) {
    return Mismatch("shm: " + PeerText(peer) + " has " + std::to_string(hello.streams) +
                    " streams and rings of " + std::to_string(hello.ring_bytes) +
                    " bytes, this rank " + std::to_string(agreement_.shape.streams) + " and " +
                    std::to_string(agreement_.shape.ring_bytes) +
                    "; use the same options on every rank");
  }
  return Status();
}

Result<bool> Meeting::WantsOffers(const Hello& peer) const {
  if (trial_ == nullptr) return false;
  const bool is_required = agreement_.single_copy == SingleCopy::kOn;
  // The trial costs milliseconds, and one answer is good for all peers of the host.
  if (!is_required && !trial_->MayBeFaster()) return false;
  const Status status = trial_->TryRead(peer.pid, peer.probe_address, peer.probe_value);
  if (status.ok()) return is_required || trial_->IsFaster(peer.pid, peer.probe_address);
  if (!is_required) return false;
  return Unsupported("shm: the memory of " + PeerText(peer.rank) + " (process " +
                     std::to_string(peer.pid) + ") cannot be read: " + status.message() +
                     "; use shm_single_copy=auto or permit process_vm_readv");
}

Status Meeting::Dial(const Guest& guest) {
  const int peer = guest.invited.rank;
  RABIT_ASSIGN_OR_RETURN(UniqueFd fd, DialPeer(peer, guest.name, context_.deadline));
  RABIT_RETURN_IF_ERROR(SendOwnHello(fd.get(), guest, false));
  dialled_.push_back({peer, std::move(fd)});
  return Status();
}

Status Meeting::AcceptAll(int listener, std::vector<Guest> missing) {
  while (!missing.empty()) {
    // A rank that fails during the start says so in the store only; without this look its peers
    // would wait for its hello until the deadline.
    RABIT_RETURN_IF_ERROR(context_.Look());
    const int first = missing.front().invited.rank;
    const Deadline next = std::min(context_.deadline, After(kStartLookInterval));
    const Result<ssize_t> accepted = WhenReady(listener, POLLIN, next, PeerText(first), [&] {
      return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    });
    if (accepted.status().code() == Code::kTimedOut &&
        std::chrono::steady_clock::now() < context_.deadline) {
      continue;
    }
    if (!accepted.ok()) return accepted.status().WithCulprit(first);
    UniqueFd fd(static_cast<int>(*accepted));
    // Strangers are dropped without a word in the log: what they send is read by nobody.
    if (!fd.is_open() || !IsOwnUser(fd.get())) continue;
    const Deadline patience = std::min(context_.deadline, After(kStrangerTime));
    Hello hello{};
    UniqueFd inbox_fd;
    // One stranger that says nothing may hold up the others for this patience, once for each
    // connection.
    if (!ReceiveHello(fd.get(), first, patience, hello, inbox_fd).ok()) continue;
    if (hello.magic != kMagic || !IsEqual(hello.token, token_)) continue;
    const auto found = std::find_if(missing.begin(), missing.end(), [&](const Guest& each) {
      return each.invited.rank == hello.rank;
    });
    if (found == missing.end()) continue;
    const Guest guest = *found;
    missing.erase(found);
    RABIT_RETURN_IF_ERROR(Answer(guest, std::move(fd), hello, std::move(inbox_fd)));
  }
  return Status();
}

Status Meeting::Answer(const Guest& guest, UniqueFd fd, const Hello& hello, UniqueFd inbox_fd) {
  const Status status = Check(hello, guest.invited.rank);
  bool wants_offers = false;
  if (status.ok()) {
    RABIT_ASSIGN_OR_RETURN(wants_offers, WantsOffers(hello));
  }
  // Also to whom we refuse: it sees for itself what differs.
  RABIT_RETURN_IF_ERROR(SendOwnHello(fd.get(), guest, wants_offers));
  RABIT_RETURN_IF_ERROR(status);
  RABIT_ASSIGN_OR_RETURN(Inbox inbox, Inbox::Map(std::move(inbox_fd), agreement_.shape));
  answered_.emplace(hello.rank,
                    ShmPeer{hello.rank, hello.pid, std::move(fd), std::move(inbox), false});
  return Status();
}

Result<ShmPeer> Meeting::HearAnswer(Connection dialled) const {
  Hello hello{};
  UniqueFd inbox_fd;
  const int fd = dialled.fd.get();
  RABIT_RETURN_IF_ERROR(ReceiveHello(fd, dialled.rank, context_.deadline, hello, inbox_fd));
  RABIT_RETURN_IF_ERROR(Check(hello, dialled.rank));
  RABIT_ASSIGN_OR_RETURN(Inbox inbox, Inbox::Map(std::move(inbox_fd), agreement_.shape));
  RABIT_ASSIGN_OR_RETURN(const bool wants_offers, WantsOffers(hello));
  const uint8_t wish = wants_offers ? 1 : 0;
  if (send(fd, &wish, 1, MSG_NOSIGNAL) != 1) {
    return PeerLost(dialled.rank, "shm: " + PeerText(dialled.rank) + " went away while connecting");
  }
  return ShmPeer{dialled.rank, hello.pid, std::move(dialled.fd), std::move(inbox),
                 hello.wants_offers == 1 && trial_ != nullptr};
}

Status Meeting::HearWish(ShmPeer& peer) const {
  const int fd = peer.connection.get();
  uint8_t wish = 0;
  RABIT_ASSIGN_OR_RETURN(const ssize_t n,
                         WhenReady(fd, POLLIN, context_.deadline, PeerText(peer.rank),
                                   [&] { return recv(fd, &wish, 1, 0); }));
  if (n != 1) {
    return PeerLost(peer.rank, "shm: " + PeerText(peer.rank) +
                                   " closed the connection while connecting; see its own error");
  }
  peer.wants_offers = wish == 1 && trial_ != nullptr;
  return Status();
}

Result<std::vector<ShmPeer>> Meeting::Finish() {
  std::vector<ShmPeer> peers;
  // Those that were dialled are below this rank, the others above it.
  for (Connection& each : dialled_) {
    RABIT_ASSIGN_OR_RETURN(ShmPeer peer, HearAnswer(std::move(each)));
    peers.push_back(std::move(peer));
  }
  for (auto& [rank, peer] : answered_) {
    RABIT_RETURN_IF_ERROR(HearWish(peer));
    peers.push_back(std::move(peer));
  }
  return peers;
}

}  // namespace

Result<std::vector<ShmPeer>> MeetShmPeers(const ConnectContext& context,
                                          const std::vector<ShmInvitation>& invited,
                                          std::string_view purpose, ShmMeeting meeting,
                                          const ShmAgreement& agreement) {
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
      TellNames(context, invited, std::to_string(context.epoch) + "/" + std::string(purpose) + "/",
                meeting, Hex(name) + Hex(token)));

  SingleCopyTrial* trial = nullptr;
  if (agreement.single_copy != SingleCopy::kOff) {
    RABIT_ASSIGN_OR_RETURN(trial, SingleCopyTrial::OfThisProcess());
  }
  Meeting side(context, agreement, token, trial);
  std::vector<Guest> missing;
  for (size_t i = 0; i < invited.size(); ++i) {
    const std::string& published = all_published[i];
    Guest guest{.invited = invited[i], .name = {}, .token = {}};
    if (published.size() != 4 * guest.name.size() ||
        !FromHex(std::string_view(published).substr(0, 32), guest.name) ||
        !FromHex(std::string_view(published).substr(32), guest.token)) {
      return Mismatch("shm: the store holds '" + published + "' for " +
                      PeerText(guest.invited.rank) + "; run the same version on every rank");
    }
    if (guest.invited.rank > context.rank) {
      missing.push_back(guest);
    } else {
      RABIT_RETURN_IF_ERROR(side.Dial(guest));
    }
  }
  RABIT_RETURN_IF_ERROR(side.AcceptAll(listener.get(), std::move(missing)));
  return side.Finish();
}

}  // namespace rabit

#include "rendezvous/listener.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <list>
#include <map>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/poller.h"
#include "base/random.h"
#include "base/socket.h"
#include "rendezvous/handshake.h"

namespace rabit {
namespace {

constexpr std::chrono::seconds kStrangerTime{2};
constexpr size_t kStrangersMax = 256;
// Of the files that this process may open, strangers get one in so many: it must still dial.
constexpr size_t kFilesPerStranger = 4;
// Authenticated, but nobody has asked for their purpose yet.
constexpr size_t kParkedMax = 4096;
constexpr uint64_t kAcceptKey = 0;

// A connection that has proved nothing yet.  Reads exactly the bytes of the handshake, because
// what follows them belongs to the purpose's owner.
struct Stranger {
  UniqueFd fd;
  Deadline deadline;
  uint64_t key = 0;
  std::array<std::byte, kHelloBytes + kProofBytes> input{};
  size_t filled = 0;
  Greeting claimed;
  Digest expected_proof{};
};

using Handler = std::function<void(AuthenticatedPeer)>;

size_t StrangersMax() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kStrangersMax;
  }
  return std::clamp<size_t>(limit.rlim_cur / kFilesPerStranger, 1, kStrangersMax);
}

class EpollListener final : public Listener {
 public:
  EpollListener(UniqueFd socket, SocketAddress bound, Poller poller, const Secret& secret,
                uint64_t epoch, int32_t rank)
      : secret_(secret),
        epoch_(epoch),
        rank_(rank),
        strangers_max_(StrangersMax()),
        bound_(bound),
        logger_(LogLevel::kWarning, rank),
        socket_(std::move(socket)),
        poller_(std::move(poller)) {}

  ~EpollListener() override {
    is_stopping_.store(true);
    poller_.Wake();
    if (thread_.joinable()) thread_.join();
  }

  Status Start() {
    RABIT_RETURN_IF_ERROR(poller_.Add(socket_.get(), kAcceptKey, true, false));
    // Everything below "the thread's own" belongs to this thread from here on and has no lock.
    thread_ = std::thread([this] { Run(); });
    return {};
  }

  std::string address() const override { return bound_.ToString(); }

  void SetEpoch(uint64_t epoch) override {
    MutexLock lock(mutex_);
    // Under the lock, so that a peer of the new epoch is not handed to a handler of the one before:
    // HandOver compares under it.
    epoch_.store(epoch);
    keeps_later_.store(true);
    poller_.Wake();
  }

  void SetHandler(std::string_view purpose, Handler handler) override {
    MutexLock lock(mutex_);
    handlers_.insert_or_assign(std::string(purpose), std::make_shared<Handler>(std::move(handler)));
    // A peer for this purpose may be parked already, and only the thread hands it over.
    poller_.Wake();
  }

  void RemoveHandler(std::string_view purpose) override {
    MutexLock lock(mutex_);
    handlers_.erase(std::string(purpose));
    if (std::this_thread::get_id() == thread_.get_id()) return;
    // The handler must not run after this, since it refers to an object that is about to go; from
    // within the handler itself there is nothing to wait for.
    while (running_ == purpose) handler_ended_.WaitUntil(mutex_, After(std::chrono::seconds(1)));
  }

 private:
  void Run();
  void Accept();
  void MakeRoom();
  void Serve(uint64_t key);
  // Whether the stranger goes on; false: it is to be dropped or was handed over.
  bool Advance(Stranger& stranger);
  bool AnswerHello(Stranger& stranger);
  void RefuseHello(const Stranger& stranger, const Status& why);
  void DropOverdue();
  void Refuse(int fd, std::string_view why);
  void HandOver();
  Deadline NextDeadline() const;

  const Secret secret_;
  std::atomic<uint64_t> epoch_;
  std::atomic<bool> keeps_later_{false};  // those of later epochs wait
  const int32_t rank_;
  const size_t strangers_max_;
  const SocketAddress bound_;
  const Logger logger_;
  RateLimit log_limit_{std::chrono::seconds(1)};
  UniqueFd socket_;
  Poller poller_;
  std::thread thread_;
  std::atomic<bool> is_stopping_{false};

  // The thread's own.
  std::list<Stranger> strangers_;  // oldest first, so deadlines ascend
  uint64_t next_key_ = kAcceptKey + 1;
  bool is_accepting_ = true;
  Deadline accept_again_{};
  std::deque<AuthenticatedPeer> parked_;  // oldest first

  Mutex mutex_;
  CondVar handler_ended_;
  std::map<std::string, std::shared_ptr<Handler>> handlers_ RABIT_GUARDED_BY(mutex_);
  std::string running_ RABIT_GUARDED_BY(mutex_);  // purpose of the handler that runs, or empty
};

void EpollListener::Run() {
  while (!is_stopping_.load()) {
    for (const Poller::Event& event : poller_.Wait(NextDeadline())) {
      if (event.key == kAcceptKey) {
        Accept();
      } else {
        Serve(event.key);
      }
    }
    // Once in each round: strangers have a deadline that no event reports.
    DropOverdue();
    HandOver();
  }
}

Deadline EpollListener::NextDeadline() const {
  Deadline next = After(std::chrono::hours(1));
  if (!strangers_.empty()) next = std::min(next, strangers_.front().deadline);
  if (!is_accepting_) next = std::min(next, accept_again_);
  return next;
}

void EpollListener::Accept() {
  // Bounded, so that a flood of connections leaves time for those that are under way.
  for (size_t i = 0; i < kStrangersMax; ++i) {
    UniqueFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.is_open()) {
      if ((errno == EMFILE || errno == ENFILE) && !strangers_.empty()) {
        Refuse(strangers_.front().fd.get(), "no more files can be opened (ulimit -n)");
        strangers_.pop_front();
        continue;
      }
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        logger_.Error("cannot accept connections: " + ErrnoText(errno) +
                      "; raise the limit of open files (ulimit -n)");
        // The connection stays in the backlog and would end every wait at once.
        is_accepting_ = !poller_.Change(socket_.get(), kAcceptKey, false, false).ok();
        accept_again_ = After(std::chrono::milliseconds(100));
      }
      return;
    }
    // Any process may connect, so the number of those that have proved nothing is bounded.
    if (strangers_.size() >= strangers_max_) MakeRoom();
    Stranger& stranger = strangers_.emplace_back();
    stranger.fd = std::move(fd);
    stranger.deadline = After(kStrangerTime);
    stranger.key = next_key_++;
    if (!SetNoDelay(stranger.fd.get()).ok() ||
        !poller_.Add(stranger.fd.get(), stranger.key, true, false).ok()) {
      strangers_.pop_back();
    }
  }
}

// The oldest goes, after a look at what it has sent: many honest ones that come at once are no flood.
void EpollListener::MakeRoom() {
  if (Advance(strangers_.front())) {
    Refuse(strangers_.front().fd.get(), "too many connections have not proved who they are");
  }
  strangers_.pop_front();
}

void EpollListener::Serve(uint64_t key) {
  // A few hundred at most: a search costs less than an index.
  const auto found = std::find_if(strangers_.begin(), strangers_.end(),
                                  [key](const Stranger& stranger) { return stranger.key == key; });
  // Not to be found: it was dropped in this same round, and its event came before.
  if (found != strangers_.end() && !Advance(*found)) strangers_.erase(found);
}

bool EpollListener::Advance(Stranger& stranger) {
  for (;;) {
    const size_t goal = stranger.filled < kHelloBytes ? kHelloBytes : kHelloBytes + kProofBytes;
    const ssize_t got = ::recv(stranger.fd.get(), stranger.input.data() + stranger.filled,
                               goal - stranger.filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) {
      Refuse(stranger.fd.get(),
             stranger.filled < kHelloBytes
                 ? "it closed before it said who it is"
                 : "it left after this side's reply: it may hold another secret");
      return false;
    }
    stranger.filled += static_cast<size_t>(got);
    if (stranger.filled >= 8 && stranger.filled < kHelloBytes) {
      // Strangers are shown the door at their first wrong byte, without waiting for a whole hello.
      if (Status status = CheckPreamble(ConstBytes(stranger.input).first(8), 1); !status.ok()) {
        RefuseHello(stranger, status);
        return false;
      }
    }
    // Nothing that the hello claims is used before the proof: the reply depends on the secret
    // alone.
    if (stranger.filled == kHelloBytes && !AnswerHello(stranger)) return false;
    if (stranger.filled < stranger.input.size()) continue;
    if (!EqualInConstantTime(ConstBytes(stranger.input).subspan(kHelloBytes),
                             stranger.expected_proof)) {
      Refuse(stranger.fd.get(), "it does not hold this job's secret");
      return false;
    }
    // From here on the connection belongs to the owner of its purpose, with whatever lies unread in
    // it.
    poller_.Remove(stranger.fd.get());
    // The peer of a dropped connection sees its end and dials again.
    if (parked_.size() >= kParkedMax) parked_.pop_front();
    parked_.push_back({std::move(stranger.fd), std::move(stranger.claimed)});
    return false;
  }
}

bool EpollListener::AnswerHello(Stranger& stranger) {
  Hello hello;
  std::copy_n(stranger.input.begin(), kHelloBytes, hello.begin());
  Result<Greeting> greeting = DecodeHello(hello);
  Nonce nonce;
  Status status = greeting.status();
  if (status.ok()) status = FillRandom(nonce);
  if (!status.ok()) {
    RefuseHello(stranger, status);
    return false;
  }
  // These are claims until the proof; only the epoch is looked at, which a stranger may know.
  stranger.claimed = *greeting;
  const uint64_t epoch = epoch_.load();
  const bool is_refused = stranger.claimed.epoch < epoch ||
                          (stranger.claimed.epoch > epoch && !keeps_later_.load());
  const Reply reply = EncodeReply(secret_, hello, {epoch, rank_, is_refused}, nonce);
  // A fresh connection's buffer takes a reply at once; one that does not is not worth waiting for.
  if (::send(stranger.fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(reply.size())) {
    Refuse(stranger.fd.get(), "it does not take the reply");
    return false;
  }
  if (is_refused) {
    Refuse(stranger.fd.get(), "it belongs to epoch " + std::to_string(stranger.claimed.epoch) +
                                  ", this process to epoch " + std::to_string(epoch));
    return false;
  }
  // The nonce of the reply is in the proof, so a recorded one is worth nothing.
  stranger.expected_proof = MakeProof(secret_, hello, reply);
  return true;
}

void EpollListener::RefuseHello(const Stranger& stranger, const Status& why) {
  if (why.code() == Code::kUnsupported) {
    // A process of another version learns from these eight bytes what this side speaks.
    const Reply reply = EncodeReply(Secret{}, Hello{}, {}, Nonce{});
    [[maybe_unused]] const ssize_t put = ::send(stranger.fd.get(), reply.data(), 8, MSG_NOSIGNAL);
  }
  Refuse(stranger.fd.get(), why.message());
}

void EpollListener::DropOverdue() {
  const auto now = std::chrono::steady_clock::now();
  while (!strangers_.empty() && strangers_.front().deadline <= now) {
    Refuse(strangers_.front().fd.get(), "it did not prove who it is within 2 s");
    strangers_.pop_front();
  }
  if (!is_accepting_ && accept_again_ <= now) {
    is_accepting_ = poller_.Change(socket_.get(), kAcceptKey, true, false).ok();
    accept_again_ = After(std::chrono::milliseconds(100));
  }
}

void EpollListener::Refuse(int fd, std::string_view why) {
  uint64_t suppressed = 0;
  // Any process can make this line, so there is at most one a second.
  if (!log_limit_.Allow(&suppressed)) return;
  std::string text = "refused a connection from " + RemoteAddressText(fd) + " to " +
                     bound_.ToString() + ": " + std::string(why);
  if (suppressed > 0) text += " (and " + std::to_string(suppressed) + " more before this one)";
  logger_.Warning(text);
}

void EpollListener::HandOver() {
  std::erase_if(parked_, [this](const AuthenticatedPeer& peer) {
    return peer.greeting.epoch < epoch_.load();  // it closes, and its end dials again or is told
  });
  for (size_t i = 0; i < parked_.size();) {
    std::shared_ptr<Handler> handler;
    {
      MutexLock lock(mutex_);
      if (parked_[i].greeting.epoch != epoch_.load()) {
        ++i;
        continue;
      }
      auto found = handlers_.find(parked_[i].greeting.purpose);
      if (found != handlers_.end()) {
        handler = found->second;
        running_ = parked_[i].greeting.purpose;
      }
    }
    if (handler == nullptr) {
      ++i;
      continue;
    }
    AuthenticatedPeer peer = std::move(parked_[i]);
    parked_.erase(parked_.begin() + static_cast<std::ptrdiff_t>(i));
    // Without the lock, which the handler takes if it removes itself.
    (*handler)(std::move(peer));
    MutexLock lock(mutex_);
    running_.clear();
    handler_ended_.NotifyAll();
  }
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::Open(std::string_view address, const Secret& secret,
                                                 uint64_t epoch, int32_t rank) {
  RABIT_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, Resolve(address));
  RABIT_ASSIGN_OR_RETURN(UniqueFd socket, Listen(addresses.front(), 1024));
  RABIT_ASSIGN_OR_RETURN(SocketAddress bound, LocalAddress(socket.get()));
  RABIT_ASSIGN_OR_RETURN(Poller poller, Poller::Open());
  auto listener = std::make_unique<EpollListener>(std::move(socket), bound, std::move(poller),
                                                  secret, epoch, rank);
  RABIT_RETURN_IF_ERROR(listener->Start());
  return std::unique_ptr<Listener>(std::move(listener));
}

}  // namespace rabit

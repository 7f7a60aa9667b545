#include "rendezvous/store_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/poller.h"
#include "base/wire.h"
#include "rendezvous/store_wire.h"

namespace rabit {
namespace {

constexpr size_t kConnectionsMax = 16 * 1024;

struct Connection {
  UniqueFd fd;
  std::vector<std::byte> input;  // as large as the frame that is coming in, never larger
  size_t filled = 0;
  std::vector<std::byte> output;
  size_t sent = 0;
  bool is_write_watched = false;
  std::string awaited_key;  // of a Watch that waits; else empty
  std::string unless_key;   // that ends it when it is set, or empty
  uint64_t seen_version = 0;
  Deadline wait_deadline{};
  std::string will_key;  // set to will_value when the connection ends; empty: no will
  std::string will_value;

  bool is_waiting() const { return !awaited_key.empty(); }
  bool is_sending() const { return sent < output.size(); }
};

Status IsSet(std::string_view key) {
  return Aborted("store key '" + std::string(key) + "' has been set, which ends this wait");
}

StoreResponse ErrorResponse(const Status& status) {
  return {status.code(), false, 0, status.message()};
}

// "7/" of "7/failed", the will of every process of epoch 7; empty for other wills, as servers have.
std::string_view ScopeOfEpoch(std::string_view will_key) {
  const size_t digits = will_key.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos || will_key.substr(digits) != "/failed") {
    return {};
  }
  return will_key.substr(0, digits + 1);
}

class EpollStoreServer final : public StoreServer {
 public:
  EpollStoreServer(std::unique_ptr<Listener> listener, Poller poller)
      : poller_(std::move(poller)), listener_(std::move(listener)) {
    // The thread alone touches the board and the connections; the listener's thread only adds to
    // arrivals_, under the lock.
    thread_ = std::thread([this] { Run(); });
    listener_->SetHandler("store", [this](AuthenticatedPeer peer) {
      MutexLock lock(mutex_);
      arrivals_.push_back(std::move(peer.fd));
      poller_.Wake();
    });
  }

  ~EpollStoreServer() override {
    // First the listener: its handler refers to this object, and ends with it.
    listener_.reset();
    is_stopping_.store(true);
    poller_.Wake();
    thread_.join();
  }

  std::string address() const override { return listener_->address(); }

 private:
  using Key = uint64_t;

  void Run();
  void TakeArrivals();
  // False: the connection is over.
  bool Read(Key key, Connection& connection);
  bool Write(Key key, Connection& connection);
  bool Handle(Key key, Connection& connection);
  bool TakeWill(Key key, Connection& connection, const StoreRequest& request);
  bool StartWatching(Key key, Connection& connection, const StoreRequest& request);
  void StopWatching(Key key, Connection& connection);
  bool Answer(Key key, Connection& connection, const StoreResponse& response);
  void AnswerWaiters(const std::string& store_key);
  void AnswerOverdue();
  void Close(Key key);
  void SetWill(Connection& connection, std::string key, std::string value);

  Poller poller_;
  std::unique_ptr<Listener> listener_;
  std::thread thread_;
  std::atomic<bool> is_stopping_{false};

  // The thread's own.
  Board board_;
  std::unordered_map<Key, Connection> connections_;
  Key next_key_ = 1;
  std::map<std::string, std::set<Key>> waiters_;  // store key -> connections
  std::set<std::pair<Deadline, Key>> wait_deadlines_;
  std::map<std::string, int, std::less<>> wills_;  // how many connections have one for this key

  Mutex mutex_;
  std::vector<UniqueFd> arrivals_ RABIT_GUARDED_BY(mutex_);
};

void EpollStoreServer::Run() {
  while (!is_stopping_.load()) {
    const Deadline next =
        wait_deadlines_.empty() ? After(std::chrono::hours(1)) : wait_deadlines_.begin()->first;
    for (const Poller::Event& event : poller_.Wait(next)) {
      const auto found = connections_.find(event.key);
      // An event of this round may be of a connection that an earlier event has closed.
      if (found == connections_.end()) continue;
      const bool goes_on = (!event.is_writable || Write(event.key, found->second)) &&
                           (!event.is_readable || Read(event.key, found->second));
      if (!goes_on) Close(event.key);
    }
    TakeArrivals();
    AnswerOverdue();
  }
}

void EpollStoreServer::TakeArrivals() {
  std::vector<UniqueFd> arrivals;
  {
    MutexLock lock(mutex_);
    arrivals.swap(arrivals_);
  }
  for (UniqueFd& fd : arrivals) {
    // Its descriptor closes here; the client sees the end, waits and dials again.
    if (connections_.size() >= kConnectionsMax) continue;
    const Key key = next_key_++;
    if (!poller_.Add(fd.get(), key, true, false).ok()) continue;
    connections_[key].fd = std::move(fd);
  }
}

bool EpollStoreServer::Read(Key key, Connection& connection) {
  if (connection.is_waiting() || connection.is_sending()) {
    // One request at a time: only the end of the stream is expected here.
    std::byte ignored;
    const ssize_t got = ::recv(connection.fd.get(), &ignored, 1, MSG_PEEK);
    return got < 0 && (errno == EAGAIN || errno == EINTR);
  }
  for (;;) {
    const bool has_length = connection.filled >= kStoreLengthBytes;
    if (!has_length) connection.input.resize(kStoreLengthBytes);
    const ssize_t got = ::recv(connection.fd.get(), connection.input.data() + connection.filled,
                               connection.input.size() - connection.filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    connection.filled += static_cast<size_t>(got);
    if (connection.filled < connection.input.size()) continue;
    if (!has_length) {
      const uint32_t length = LoadLittle<uint32_t>(connection.input.data());
      // The length decides how much is allocated: without a bound one defective client could take
      // the memory of the launcher.
      if (length == 0 || length > kStoreFrameBytesMax) return false;
      connection.input.resize(kStoreLengthBytes + length);
      continue;
    }
    return Handle(key, connection);
  }
}

bool EpollStoreServer::TakeWill(Key key, Connection& connection, const StoreRequest& request) {
  const Status status = CheckStoreKey(request.key);
  if (status.ok()) {
    SetWill(connection, request.value.empty() ? std::string() : request.key, request.value);
  }
  return Answer(key, connection, ErrorResponse(status));
}

bool EpollStoreServer::Handle(Key key, Connection& connection) {
  Result<StoreRequest> request =
      DecodeStoreRequest(ConstBytes(connection.input).subspan(kStoreLengthBytes));
  connection.filled = 0;
  connection.input = {};
  if (!request.ok()) return false;
  switch (request->op) {
    case StoreOp::kSet: {
      const Status status = board_.Set(request->key, request->value);
      AnswerWaiters(request->key);
      return Answer(key, connection, ErrorResponse(status));
    }
    case StoreOp::kCompareAndSet: {
      const Result<Swap> swap =
          board_.CompareAndSet(request->key, request->version, request->value);
      if (!swap.ok()) return Answer(key, connection, ErrorResponse(swap.status()));
      if (swap->is_mine) AnswerWaiters(request->key);
      return Answer(key, connection,
                    {Code::kOk, swap->is_mine, swap->held.version, swap->held.value});
    }
    case StoreOp::kWill:
      return TakeWill(key, connection, *request);
    case StoreOp::kWatch:
      return StartWatching(key, connection, *request);
  }
  return false;
}

bool EpollStoreServer::StartWatching(Key key, Connection& connection, const StoreRequest& request) {
  if (Status status = CheckStoreKey(request.key); !status.ok()) {
    return Answer(key, connection, ErrorResponse(status));
  }
  const Versioned* const held = board_.Find(request.key);
  if (held != nullptr && held->version > request.version) {
    return Answer(key, connection, {Code::kOk, false, held->version, held->value});
  }
  // The awaited key comes first: a rank that has got its answer needs no error of another one.
  if (board_.Find(request.unless) != nullptr) {
    return Answer(key, connection, ErrorResponse(IsSet(request.unless)));
  }
  connection.wait_deadline = After(std::chrono::milliseconds(request.wait_ms));
  connection.awaited_key = request.key;
  connection.unless_key = request.unless;
  connection.seen_version = request.version;
  // Nothing is set between the look above and this line, because one thread does both.
  waiters_[request.key].insert(key);
  if (!request.unless.empty()) waiters_[request.unless].insert(key);
  wait_deadlines_.insert({connection.wait_deadline, key});
  return true;
}

void EpollStoreServer::AnswerWaiters(const std::string& store_key) {
  const auto found = waiters_.find(store_key);
  const Versioned* const now = board_.Find(store_key);
  if (found == waiters_.end() || now == nullptr) return;
  // Copies: to close one may do its will, which answers others and removes keys.
  const Versioned held = *now;
  const std::set<Key> keys = found->second;
  for (const Key key : keys) {
    const auto found_connection = connections_.find(key);
    if (found_connection == connections_.end() || !found_connection->second.is_waiting()) continue;
    Connection& connection = found_connection->second;
    const bool is_awaited = connection.awaited_key == store_key;
    if (is_awaited && connection.seen_version >= held.version) continue;
    StopWatching(key, connection);
    const StoreResponse response = is_awaited
                                       ? StoreResponse{Code::kOk, false, held.version, held.value}
                                       : ErrorResponse(IsSet(store_key));
    if (!Answer(key, connection, response)) Close(key);
  }
}

void EpollStoreServer::StopWatching(Key key, Connection& connection) {
  wait_deadlines_.erase({connection.wait_deadline, key});
  for (std::string* awaited : {&connection.awaited_key, &connection.unless_key}) {
    const auto waiting = waiters_.find(std::exchange(*awaited, {}));
    if (waiting == waiters_.end()) continue;
    waiting->second.erase(key);
    if (waiting->second.empty()) waiters_.erase(waiting);
  }
}

void EpollStoreServer::AnswerOverdue() {
  const auto now = std::chrono::steady_clock::now();
  while (!wait_deadlines_.empty() && wait_deadlines_.begin()->first <= now) {
    const Key key = wait_deadlines_.begin()->second;
    Connection& connection = connections_.at(key);
    const std::string store_key = connection.awaited_key;
    StopWatching(key, connection);
    const Status overdue = NotSetInTime(store_key, connection.seen_version);
    if (!Answer(key, connection, ErrorResponse(overdue))) Close(key);
  }
}

bool EpollStoreServer::Answer(Key key, Connection& connection, const StoreResponse& response) {
  connection.output = EncodeStoreResponse(response);
  connection.sent = 0;
  return Write(key, connection);
}

bool EpollStoreServer::Write(Key key, Connection& connection) {
  if (!connection.is_sending()) return true;
  while (connection.is_sending()) {
    const ssize_t put = ::send(connection.fd.get(), connection.output.data() + connection.sent,
                               connection.output.size() - connection.sent, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EAGAIN) {
      // While an answer is under way nothing is read: a client that asks on without reading would
      // make the output grow.
      connection.is_write_watched = true;
      return poller_.Change(connection.fd.get(), key, false, true).ok();
    }
    if (put < 0) return false;
    connection.sent += static_cast<size_t>(put);
  }
  connection.output = {};
  connection.sent = 0;
  if (!std::exchange(connection.is_write_watched, false)) return true;
  return poller_.Change(connection.fd.get(), key, true, false).ok();
}

void EpollStoreServer::Close(Key key) {
  const auto found = connections_.find(key);
  Connection& connection = found->second;
  if (connection.is_waiting()) StopWatching(key, connection);
  poller_.Remove(connection.fd.get());
  const std::string will_key = connection.will_key;
  // A full board keeps no will: those who wait for it then wait until their deadline.
  if (!will_key.empty()) (void)board_.CompareAndSet(will_key, 0, connection.will_value);
  SetWill(connection, {}, {});
  connections_.erase(found);
  if (!will_key.empty()) AnswerWaiters(will_key);
}

// The last process of an epoch takes the keys of the epoch along, all but that of its will: a rank
// that comes late still hears why the others have gone.
void EpollStoreServer::SetWill(Connection& connection, std::string key, std::string value) {
  if (!key.empty()) ++wills_[key];
  const std::string last = std::exchange(connection.will_key, std::move(key));
  connection.will_value = std::move(value);
  const auto found = wills_.find(last);
  if (found == wills_.end() || --found->second > 0) return;
  wills_.erase(found);
  const std::string_view scope = ScopeOfEpoch(last);
  if (!scope.empty()) board_.Forget(scope, last);
}

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::Start(std::string_view address,
                                                        const Secret& secret) {
  // Epoch 0: a store outlives the engines that use it.
  RABIT_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                         Listener::Open(address, secret, 0, -1));
  RABIT_ASSIGN_OR_RETURN(Poller poller, Poller::Open());
  return std::unique_ptr<StoreServer>(
      std::make_unique<EpollStoreServer>(std::move(listener), std::move(poller)));
}

}  // namespace rabit

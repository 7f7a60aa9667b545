#include "rendezvous/tcp_store.h"

#include <algorithm>
#include <thread>

#include "base/socket.h"
#include "base/wire.h"

namespace rabit {
namespace {

constexpr std::chrono::seconds kAnswerTime{30};
constexpr std::chrono::seconds kWatchGrace{2};
// A server that answered once and refuses now is gone rather than late.
constexpr std::chrono::seconds kRedialTime{5};
constexpr size_t kIdleMax = 4;
// For a server that drops who comes because too many come at once.
constexpr std::chrono::seconds kCrowdTime{20};
constexpr std::chrono::milliseconds kCrowdPause{20};

uint32_t WaitMs(Deadline deadline) { return static_cast<uint32_t>(PollTimeoutMs(deadline)); }

Result<StoreResponse> Exchange(int fd, ConstBytes request, Deadline deadline) {
  RABIT_RETURN_IF_ERROR(WriteFull(fd, request, deadline));
  std::byte length_bytes[kStoreLengthBytes];
  RABIT_RETURN_IF_ERROR(ReadFull(fd, length_bytes, deadline));
  const uint32_t length = LoadLittle<uint32_t>(length_bytes);
  // The server is authenticated, but a defect of it must not make this process allocate gigabytes.
  if (length > kStoreFrameBytesMax) {
    return Internal("its answer claims " + std::to_string(length) + " bytes");
  }
  std::vector<std::byte> frame(length);
  RABIT_RETURN_IF_ERROR(ReadFull(fd, frame, deadline));
  return DecodeStoreResponse(frame);
}

}  // namespace

Result<std::unique_ptr<TcpStore>> TcpStore::Connect(std::string_view address, const Secret& secret,
                                                    int32_t rank, Deadline deadline) {
  std::unique_ptr<TcpStore> store(new TcpStore(address, secret, rank));
  RABIT_ASSIGN_OR_RETURN(UniqueFd fd, store->TakeConnection(deadline));
  // The connection of the handshake serves the first question.
  store->KeepConnection(std::move(fd));
  return store;
}

Status TcpStore::Set(std::string_view key, std::string_view value) {
  StoreRequest request;
  request.op = StoreOp::kSet;
  request.key = key;
  request.value = value;
  return Put(request).status();
}

Result<Swap> TcpStore::CompareAndSet(std::string_view key, uint64_t version,
                                     std::string_view value) {
  StoreRequest request;
  request.op = StoreOp::kCompareAndSet;
  request.key = key;
  request.version = version;
  request.value = value;
  RABIT_ASSIGN_OR_RETURN(StoreResponse response, Put(request));
  return Swap{response.is_mine, {response.version, std::move(response.text)}};
}

Result<StoreResponse> TcpStore::Put(const StoreRequest& request) {
  RABIT_RETURN_IF_ERROR(CheckStoreKey(request.key));
  if (request.value.size() > kStoreValueBytesMax) {
    return InvalidArgument("the value of store key '" + request.key + "' has " +
                           std::to_string(request.value.size()) +
                           " bytes; a store takes at most " + std::to_string(kStoreValueBytesMax));
  }
  return Ask(request, After(kAnswerTime));
}

Status TcpStore::LeaveWill(std::string_view key, std::string_view value, Deadline deadline) {
  StoreRequest request;
  request.op = StoreOp::kWill;
  request.key = key;
  request.value = value;
  // A connection of its own: its end is what makes the will come true.
  RABIT_ASSIGN_OR_RETURN(UniqueFd fd, DialServer(deadline));
  RABIT_ASSIGN_OR_RETURN(const StoreResponse response,
                         Exchange(fd.get(), EncodeStoreRequest(request), deadline));
  // Only from here on the will counts: the connection of a refused one ends with this function, and
  // says nothing.
  if (response.code != Code::kOk) return Status(response.code, response.text);
  will_ = std::move(fd);
  will_key_ = key;
  return Status();
}

void TcpStore::TakeBackWill() {
  if (!will_.is_open()) return;
  StoreRequest request;
  request.op = StoreOp::kWill;
  request.key = will_key_;
  // One small message: the kernel takes it at once, and the server reads it before the end.
  (void)WriteFull(will_.get(), EncodeStoreRequest(request), Deadline{});
  will_.reset();
}

Result<Versioned> TcpStore::Watch(std::string_view key, uint64_t seen, Deadline deadline) {
  return WatchUnless({}, key, seen, deadline);
}

Result<Versioned> TcpStore::WatchUnless(std::string_view unless, std::string_view key,
                                        uint64_t seen, Deadline deadline) {
  RABIT_RETURN_IF_ERROR(CheckStoreKey(key));
  StoreRequest request;
  request.op = StoreOp::kWatch;
  request.key = key;
  request.unless = unless;
  request.version = seen;
  request.wait_ms = WaitMs(deadline);
  const Deadline answer_deadline =
      // The server keeps the deadline; the grace is for its answer to arrive, so that a timeout
      // comes from there and says what was missing.
      std::max(deadline, std::chrono::steady_clock::now()) + kWatchGrace;
  RABIT_ASSIGN_OR_RETURN(StoreResponse response, Ask(request, answer_deadline));
  return Versioned{response.version, std::move(response.text)};
}

Result<StoreResponse> TcpStore::Ask(const StoreRequest& request, Deadline deadline) {
  // No lock is held while the server works: other threads ask on other connections.
  RABIT_ASSIGN_OR_RETURN(UniqueFd fd, TakeConnection(std::min(deadline, After(kRedialTime))));
  Result<StoreResponse> response = Exchange(fd.get(), EncodeStoreRequest(request), deadline);
  // A connection with an answer still under way would give it to the next question.
  if (!response.ok()) {
    const std::string who = rank_ < 0 ? "" : "rank " + std::to_string(rank_) + ": ";
    return Status(response.status().code(), who + "the store at " + address_ +
                                                " did not answer for key '" + request.key +
                                                "': " + response.status().message() +
                                                "; is the launcher (or rank 0) still running?");
  }
  KeepConnection(std::move(fd));
  if (response->code != Code::kOk) return Status(response->code, std::move(response->text));
  return response;
}

Result<UniqueFd> TcpStore::TakeConnection(Deadline deadline) {
  {
    MutexLock lock(mutex_);
    // Several threads ask at once, and a watch blocks its connection: each takes one for itself.
    if (!idle_.empty()) {
      UniqueFd fd = std::move(idle_.back());
      idle_.pop_back();
      return fd;
    }
  }
  return DialServer(deadline);
}

// The dialler has the last word of a handshake, so only an answer shows that the server did not drop
// it as one stranger too many.  What is asked changes nothing, so it may be asked again.
Result<UniqueFd> TcpStore::DialServer(Deadline deadline) {
  StoreRequest question;
  question.op = StoreOp::kWatch;
  question.key = "is anybody there";
  const std::vector<std::byte> bytes = EncodeStoreRequest(question);
  const Deadline crowd_deadline = std::min(deadline, After(kCrowdTime));
  for (;;) {
    RABIT_ASSIGN_OR_RETURN(UniqueFd fd,
                           Dial(address_, secret_, {"store", 0, rank_, 0}, -1, deadline));
    const Result<StoreResponse> answer = Exchange(fd.get(), bytes, deadline);
    if (answer.ok()) return fd;
    const bool was_dropped = answer.status().code() == Code::kPeerLost;
    if (!was_dropped || std::chrono::steady_clock::now() + kCrowdPause >= crowd_deadline) {
      return Status(answer.status().code(), "the store at " + address_ + " took a connection " +
                                                "and did not answer on it: " +
                                                answer.status().message());
    }
    std::this_thread::sleep_for(kCrowdPause);
  }
}

void TcpStore::KeepConnection(UniqueFd fd) {
  MutexLock lock(mutex_);
  // The others are closed: with thousands of ranks their files are what the server runs out of.
  if (idle_.size() < kIdleMax) idle_.push_back(std::move(fd));
}

}  // namespace rabit

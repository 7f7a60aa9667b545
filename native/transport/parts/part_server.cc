#include "transport/parts/part_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/mutex.h"
#include "base/poller.h"
#include "base/socket.h"
#include "base/unique_fd.h"
#include "transport/parts/part_wire.h"

namespace rabit {
namespace {

// Sent at a time: an owner that closes a part waits for one.
constexpr size_t kSendBytes = 512 * 1024;
constexpr std::chrono::milliseconds kBeat{250};  // a reader gives a server up after a second or more
constexpr std::array<std::byte, 64 * 1024> kZeros{};
// A reader whose host has gone closes nothing; its connection would stay for ever.
constexpr std::chrono::seconds kSilenceMax{60};

struct Part {
  ConstBytes memory;
  bool is_open = false;
  uint64_t version = 0;  // the last one that was open
};

// What one reader has asked, and how far the answer is.
struct Reading {
  UniqueFd fd;
  std::array<std::byte, kPartQuestionBytes> input{};
  size_t filled = 0;
  PartQuestion question;
  bool is_waiting = false;
  std::vector<std::byte> head;  // bytes before those of the part
  size_t head_sent = 0;
  size_t part_bytes = 0;  // that the answer has
  size_t part_sent = 0;
  uint32_t checksum = 0;
  bool is_whole = true;  // no byte of it was sent from another version
  bool has_end = false;
  bool is_write_watched = false;

  bool is_sending() const { return head_sent < head.size() || part_sent < part_bytes; }
};

// Bytes that the kernel took; -1: the connection is over.
ssize_t SendSome(int fd, ConstBytes bytes) {
  for (;;) {
    const ssize_t put = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0) return put;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  }
}

template <size_t size>
void Append(std::vector<std::byte>& to, const std::array<std::byte, size>& bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

class EpollPartServer final : public PartServer {
 public:
  EpollPartServer(std::unique_ptr<Listener> listener, Poller poller)
      : poller_(std::move(poller)), listener_(std::move(listener)) {
    thread_ = std::thread([this] { Run(); });
    listener_->SetHandler("parts", [this](AuthenticatedPeer peer) {
      MutexLock lock(mutex_);
      arrivals_.push_back(std::move(peer.fd));
      poller_.Wake();
    });
  }

  ~EpollPartServer() override {
    listener_.reset();
    is_stopping_.store(true);
    poller_.Wake();
    thread_.join();
  }

  std::string address() const override { return listener_->address(); }

  void Add(uint64_t part, ConstBytes memory) override {
    MutexLock lock(mutex_);
    parts_[part] = Part{memory, false, 0};
  }

  Status Close(uint64_t part) override {
    MutexLock lock(mutex_);
    const auto found = parts_.find(part);
    if (found == parts_.end()) return Unknown(part);
    found->second.is_open = false;
    return Status();
  }

  Status Open(uint64_t part, uint64_t version) override {
    MutexLock lock(mutex_);
    const auto found = parts_.find(part);
    if (found == parts_.end()) return Unknown(part);
    found->second.is_open = true;
    found->second.version = version;
    poller_.Wake();
    return Status();
  }

 private:
  using Key = uint64_t;

  static Status Unknown(uint64_t part) {
    return InvalidArgument("part " + std::to_string(part) + " has not been added");
  }

  void Run();
  void TakeArrivals();
  void AnswerWaiting();
  // False: the connection is over.
  bool Read(Key key, Reading& reading);
  bool Answer(Key key, Reading& reading);
  bool Write(Key key, Reading& reading);
  ssize_t SendOfPart(Reading& reading);
  bool Watch(Key key, Reading& reading, bool writes);

  Poller poller_;
  std::unique_ptr<Listener> listener_;
  std::thread thread_;
  std::atomic<bool> is_stopping_{false};

  // The thread's own.
  std::unordered_map<Key, Reading> readings_;
  Key next_key_ = 1;
  Deadline next_beat_{};

  Mutex mutex_;
  std::vector<UniqueFd> arrivals_ RABIT_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Part> parts_ RABIT_GUARDED_BY(mutex_);
};

void EpollPartServer::Run() {
  while (!is_stopping_.load()) {
    const bool has_waiting = std::any_of(readings_.begin(), readings_.end(),
                                         [](const auto& entry) { return entry.second.is_waiting; });
    const Deadline next = has_waiting ? next_beat_ : After(std::chrono::hours(1));
    for (const Poller::Event& event : poller_.Wait(next)) {
      const auto found = readings_.find(event.key);
      if (found == readings_.end()) continue;
      const bool goes_on = (!event.is_writable || Write(event.key, found->second)) &&
                           (!event.is_readable || Read(event.key, found->second));
      if (goes_on) continue;
      poller_.Remove(found->second.fd.get());
      readings_.erase(found);
    }
    TakeArrivals();
    AnswerWaiting();
  }
}

void EpollPartServer::TakeArrivals() {
  std::vector<UniqueFd> arrivals;
  {
    MutexLock lock(mutex_);
    arrivals.swap(arrivals_);
  }
  for (UniqueFd& fd : arrivals) {
    const Key key = next_key_++;
    if (!SetPeerTimeout(fd.get(), kSilenceMax).ok()) continue;
    if (!poller_.Add(fd.get(), key, true, false).ok()) continue;
    readings_[key].fd = std::move(fd);
  }
}

// Those whose part may be open now; and now and then a sign of life for all others.
void EpollPartServer::AnswerWaiting() {
  const bool is_beat = std::chrono::steady_clock::now() >= next_beat_;
  if (is_beat) next_beat_ = After(kBeat);
  std::vector<Key> ended;
  for (auto& [key, reading] : readings_) {
    if (!reading.is_waiting || reading.is_sending()) continue;
    bool goes_on = Answer(key, reading);
    if (goes_on && is_beat && reading.is_waiting) {
      Append(reading.head, Encode(PartAnswer{PartKind::kWait, 0}));
      goes_on = Watch(key, reading, true);
    }
    if (!goes_on) ended.push_back(key);
  }
  for (const Key key : ended) {
    poller_.Remove(readings_.at(key).fd.get());
    readings_.erase(key);
  }
}

bool EpollPartServer::Read(Key key, Reading& reading) {
  if (reading.is_waiting || reading.is_sending()) {
    // One question at a time: only the end of the stream is expected here.
    std::byte ignored;
    const ssize_t got = ::recv(reading.fd.get(), &ignored, 1, MSG_PEEK | MSG_DONTWAIT);
    return got < 0 && (errno == EAGAIN || errno == EINTR);
  }
  while (reading.filled < kPartQuestionBytes) {
    const ssize_t got = ::recv(reading.fd.get(), reading.input.data() + reading.filled,
                               kPartQuestionBytes - reading.filled, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    reading.filled += static_cast<size_t>(got);
  }
  reading.filled = 0;
  reading.question = DecodePartQuestion(reading.input);
  reading.head.clear();
  reading.head_sent = reading.part_bytes = reading.part_sent = 0;
  reading.checksum = 0;
  reading.is_whole = true;
  reading.has_end = false;
  return Answer(key, reading);
}

bool EpollPartServer::Answer(Key key, Reading& reading) {
  PartAnswer answer;
  {
    MutexLock lock(mutex_);
    const auto found = parts_.find(reading.question.part);
    if (found == parts_.end()) {
      answer.kind = PartKind::kUnknown;
    } else {
      const Part& part = found->second;
      answer.version = part.version;
      if (part.memory.size() != reading.question.bytes) {
        answer = {PartKind::kOtherSize, part.memory.size()};
      } else if (part.version > reading.question.version) {
        answer.kind = PartKind::kGone;
      } else if (!part.is_open || part.version < reading.question.version) {
        answer.kind = PartKind::kWait;
      }
    }
  }
  reading.is_waiting = answer.kind == PartKind::kWait;
  if (reading.is_waiting) return true;
  Append(reading.head, Encode(answer));
  if (answer.kind == PartKind::kParts) reading.part_bytes = reading.question.bytes;
  reading.has_end = answer.kind != PartKind::kParts;
  return Watch(key, reading, true);
}

bool EpollPartServer::Write(Key key, Reading& reading) {
  if (reading.head_sent < reading.head.size()) {
    const ssize_t put =
        SendSome(reading.fd.get(), ConstBytes(reading.head).subspan(reading.head_sent));
    if (put < 0) return false;
    reading.head_sent += static_cast<size_t>(put);
    if (reading.head_sent < reading.head.size()) return true;
    reading.head.clear();
    reading.head_sent = 0;
  }
  if (reading.is_waiting) return Watch(key, reading, false);
  if (reading.part_sent < reading.part_bytes) {
    const ssize_t put = SendOfPart(reading);
    if (put < 0) return false;
    reading.part_sent += static_cast<size_t>(put);
    if (reading.part_sent < reading.part_bytes) return true;
  }
  if (!std::exchange(reading.has_end, true)) {
    const PartKind kind = reading.is_whole ? PartKind::kParts : PartKind::kGone;
    Append(reading.head, Encode(PartEnd{kind, reading.checksum}));
    return true;
  }
  reading.part_bytes = reading.part_sent = 0;
  return Watch(key, reading, false);
}

// The lock is what an owner that closes the part waits for: no byte is read without it.
ssize_t EpollPartServer::SendOfPart(Reading& reading) {
  const size_t left = reading.part_bytes - reading.part_sent;
  MutexLock lock(mutex_);
  const Part& part = parts_.at(reading.question.part);
  reading.is_whole =
      reading.is_whole && part.is_open && part.version == reading.question.version;
  // What was promised is sent, and its end says that it is worth nothing.
  const ConstBytes piece = reading.is_whole
                               ? part.memory.subspan(reading.part_sent, std::min(left, kSendBytes))
                               : ConstBytes(kZeros).first(std::min(left, kZeros.size()));
  const ssize_t put = SendSome(reading.fd.get(), piece);
  if (put > 0) {
    reading.checksum = Crc32cExtend(reading.checksum, piece.first(static_cast<size_t>(put)));
  }
  return put;
}

bool EpollPartServer::Watch(Key key, Reading& reading, bool writes) {
  if (reading.is_write_watched == writes) return true;
  reading.is_write_watched = writes;
  return poller_.Change(reading.fd.get(), key, true, writes).ok();
}

}  // namespace

Result<std::unique_ptr<PartServer>> PartServer::Start(std::string_view address,
                                                      const Secret& secret, int32_t rank) {
  // Epoch 0: what is served does not end with an engine.
  RABIT_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                         Listener::Open(address, secret, 0, rank));
  RABIT_ASSIGN_OR_RETURN(Poller poller, Poller::Open());
  return std::unique_ptr<PartServer>(
      std::make_unique<EpollPartServer>(std::move(listener), std::move(poller)));
}

}  // namespace rabit

// Messages between the ranks of an emulated communicator, through pipes in shared memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <thread>
#include <vector>

namespace rabit::emulated_nccl {

constexpr int kRanksMax = 8;
constexpr size_t kPipeBytes = 32 << 10;
constexpr auto kPause = std::chrono::microseconds(20);

// From one rank to another; new memory is zero.
struct Pipe {
  std::atomic<uint64_t> written;
  std::atomic<uint64_t> read;
  std::byte bytes[kPipeBytes];
};

// What the ranks of a communicator share: a file that its identity names.
struct Board {
  std::atomic<int32_t> joined;
  std::atomic<int64_t> places[kRanksMax];   // host and device of each rank
  std::atomic<int32_t> is_gone[kRanksMax];  // aborted: what it has sent and nobody has read is lost
  Pipe pipes[kRanksMax][kRanksMax];         // [from][to]
};

// What comes before the bytes of a message; differs where the calls of two ranks do.
struct Header {
  uint64_t kind = 0;
  uint64_t bytes = 0;
};

// A message of a kernel, or the receipt of one.
struct Message {
  int peer = 0;
  Header header;
  std::byte* bytes = nullptr;
  size_t headed = 0;  // bytes of the header that have passed
  size_t passed = 0;
  Header seen{};

  bool is_over() const { return headed == sizeof header && passed == header.bytes; }
};

// One of the ranks.
struct Member {
  Board& board;
  int rank = 0;
  const std::atomic<bool>& is_aborted;
  std::function<void()> differ;  // a message is not the one that is waited for
};

inline size_t Write(Pipe& pipe, const std::byte* from, size_t bytes) {
  const uint64_t written = pipe.written.load(std::memory_order_relaxed);
  const size_t room = kPipeBytes - (written - pipe.read.load(std::memory_order_acquire));
  const size_t place = written % kPipeBytes;
  const size_t some = std::min({bytes, room, kPipeBytes - place});
  std::memcpy(pipe.bytes + place, from, some);
  pipe.written.store(written + some, std::memory_order_release);
  return some;
}

inline size_t Read(Pipe& pipe, std::byte* to, size_t bytes) {
  const uint64_t read = pipe.read.load(std::memory_order_relaxed);
  const size_t there = pipe.written.load(std::memory_order_acquire) - read;
  const size_t place = read % kPipeBytes;
  const size_t some = std::min({bytes, there, kPipeBytes - place});
  std::memcpy(to, pipe.bytes + place, some);
  pipe.read.store(read + some, std::memory_order_release);
  return some;
}

inline size_t Send(Pipe& pipe, Message& message) {
  size_t some = 0;
  if (message.headed < sizeof(Header)) {
    const auto* const header = reinterpret_cast<const std::byte*>(&message.header);
    some = Write(pipe, header + message.headed, sizeof(Header) - message.headed);
    message.headed += some;
  }
  if (message.headed < sizeof(Header)) return some;
  const size_t more =
      Write(pipe, message.bytes + message.passed, message.header.bytes - message.passed);
  message.passed += more;
  return some + more;
}

inline size_t Receive(Pipe& pipe, Message& message, const std::function<void()>& differ) {
  size_t some = 0;
  if (message.headed < sizeof(Header)) {
    auto* const seen = reinterpret_cast<std::byte*>(&message.seen);
    some = Read(pipe, seen + message.headed, sizeof(Header) - message.headed);
    message.headed += some;
    if (message.headed < sizeof(Header)) return some;
    if (std::memcmp(&message.seen, &message.header, sizeof(Header)) != 0) {
      differ();
      message.headed = sizeof(Header) + 1;  // it never ends
    }
  }
  if (message.headed != sizeof(Header)) return some;
  const size_t more =
      Read(pipe, message.bytes + message.passed, message.header.bytes - message.passed);
  message.passed += more;
  return some + more;
}

// The first message of each peer that is not over goes on.
inline size_t Progress(const Member& me, std::vector<Message>& messages, bool are_receipts) {
  std::set<int> busy;
  size_t some = 0;
  for (Message& each : messages) {
    if (each.is_over() || !busy.insert(each.peer).second) continue;
    if (are_receipts && me.board.is_gone[each.peer].load() != 0) continue;
    some += are_receipts ? Receive(me.board.pipes[each.peer][me.rank], each, me.differ)
                         : Send(me.board.pipes[me.rank][each.peer], each);
  }
  return some;
}

// What `rank` has sent is read.
inline bool HasArrived(const Board& board, int rank, int size) {
  return std::all_of(board.pipes[rank], board.pipes[rank] + size,
                     [](const Pipe& pipe) { return pipe.written.load() == pipe.read.load(); });
}

inline bool AreOver(const std::vector<Message>& messages) {
  return std::all_of(messages.begin(), messages.end(), [](const auto& m) { return m.is_over(); });
}

// False: the communicator was aborted meanwhile.
inline bool Exchange(const Member& me, std::vector<Message> sent, std::vector<Message> received) {
  while (!AreOver(sent) || !AreOver(received)) {
    if (me.is_aborted.load()) return false;
    const size_t some = Progress(me, sent, false) + Progress(me, received, true);
    if (some == 0) std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace rabit::emulated_nccl

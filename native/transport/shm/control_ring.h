// ControlRing: control messages from one rank of a host to another, through shared memory.
//
// One writer, one reader, no lock.  Each word has one side that writes it, so that a process which
// is killed between any two instructions leaves its peer nothing worse than silence.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/core_place.h"
#include "base/result.h"

namespace rabit {

inline constexpr size_t kControlRingBytes = 16 * 1024;
// A few messages of this size fit at a time.
inline constexpr int64_t kControlRingMessageBytes = kControlRingBytes / 4;

// Lies in zeroed shared memory.
struct ControlRing {
  struct alignas(64) WriterState {
    std::atomic<uint64_t> written;  // bytes so far
    // One more than the number of the first message that came another way; 0: all come this way.
    std::atomic<uint64_t> detour_from;
  };
  struct alignas(64) ReaderState {
    std::atomic<uint64_t> consumed;         // bytes so far
    std::atomic<uint64_t> detour_consumed;  // messages that came another way
    std::atomic<uint32_t> is_sleeping;      // wants to be told of the next message
    std::atomic<uint32_t> has_left;         // reads nothing more
    CorePlace waiter;                       // of the thread that waited last
  };

  WriterState writer;
  ReaderState reader;
  alignas(64) std::array<std::byte, kControlRingBytes - 128> data;

  // The writer only.  False if there is no room.
  bool TryPut(ConstBytes message);

  // The reader only.
  bool has_message() const {
    return writer.written.load(std::memory_order_acquire) !=
           reader.consumed.load(std::memory_order_relaxed);
  }
  // Empty if there is none.  kInternal if what is written there is no message, or has changed since.
  Result<std::optional<std::vector<std::byte>>> Take();

 private:
  void CopyIn(uint64_t at, ConstBytes bytes);
  void CopyOut(uint64_t at, Bytes bytes) const;
};
static_assert(sizeof(ControlRing) == kControlRingBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace rabit

// Poller: waits for many descriptors at once, and for a wake-up from another thread.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rabit {

// Level-triggered.  One thread waits; Add, Change, Remove and Wake may come from any thread.
class Poller {
 public:
  struct Event {
    uint64_t key = 0;
    bool is_readable = false;  // also at end of stream and after an error: reading tells which
    bool is_writable = false;
  };

  static Result<Poller> Open();

  // `key` comes back with the descriptor's events; any value but kWakeKey.
  Status Add(int fd, uint64_t key, bool wants_read, bool wants_write);
  Status Change(int fd, uint64_t key, bool wants_read, bool wants_write);
  void Remove(int fd);

  // Empty at the deadline, when woken or interrupted.  Valid until the next call.
  std::span<const Event> Wait(Deadline deadline);
  // Makes a Wait that waits, or else the next one, return.  Never blocks.
  void Wake();

  static constexpr uint64_t kWakeKey = ~uint64_t{0};

 private:
  Status Control(int operation, int fd, uint64_t key, bool wants_read, bool wants_write);

  UniqueFd epoll_;
  UniqueFd wake_;
  std::array<epoll_event, 64> raw_{};
  std::array<Event, 64> events_{};
};

}  // namespace rabit

// Listener and Dial: authenticated connections between the processes of one job.
//
// Both sides prove that they hold the job's secret (HMAC-SHA256 over both nonces and a transcript
// of the greeting, one key per direction) before either believes a byte of the other.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rabit {

struct Secret {
  std::array<uint8_t, 32> key{};
  static Result<Secret> FromHex(std::string_view hex);
};

// What a connection is for.  Part of the authenticated transcript.
struct Greeting {
  std::string purpose;  // "store", "channel", "tcp", "shm"; 1 to 15 bytes
  uint64_t epoch = 0;   // of the engine; a process of another epoch is refused
  int32_t rank = -1;    // of the speaker
  int32_t stream = 0;
};

struct AuthenticatedPeer {
  UniqueFd fd;  // connected, non-blocking, close-on-exec; TCP_NODELAY where it is TCP
  Greeting greeting;
};

// One event-loop thread accepts, authenticates and hands connections over by purpose.  Strangers
// can neither crash nor stall it: 2 s and 4 KiB until authenticated, at most 256 pending, or a
// quarter of the files that this process may open (the oldest is dropped), one log line a second.
// Thread-safe.
class Listener {
 public:
  virtual ~Listener() = default;

  // `address`: "127.0.0.1:0" or "[::1]:0".
  static Result<std::unique_ptr<Listener>> Open(std::string_view address, const Secret& secret,
                                                uint64_t epoch, int32_t rank);

  virtual std::string address() const = 0;  // with the port that was bound
  // From now on this epoch counts: whoever comes from an earlier one is told so and refused.  Who
  // comes from a later one waits, until that begins here; but before the first call it is refused.
  virtual void SetEpoch(uint64_t epoch) = 0;
  // Connections for `purpose` go to `handler`, on the listener's thread; it must not block.
  // Connections that came before the handler was set are kept (bounded) and handed over at once.
  virtual void SetHandler(std::string_view purpose,
                          std::function<void(AuthenticatedPeer)> handler) = 0;
  // Returns when the handler is not running and will not run again.
  virtual void RemoveHandler(std::string_view purpose) = 0;
};

// Connects and authenticates; tries again while the peer refuses, until the deadline.
// `expected_rank`: the peer must prove to be this rank; -1: any.  `look`: asked between two tries; an
// error ends them.
Result<UniqueFd> Dial(std::string_view address, const Secret& secret, const Greeting& mine,
                      int32_t expected_rank, Deadline deadline,
                      const std::function<Status()>& look = {});
// The same, but tries each address of the name once.  kPeerLost: the peer's host says that nobody
// listens there; kTimedOut: it did not work for any other reason that may pass.
Result<UniqueFd> DialOnce(std::string_view address, const Secret& secret, const Greeting& mine,
                          int32_t expected_rank, Deadline deadline);
// One connection of several.
struct DialTarget {
  std::string address;
  Greeting mine;
  int32_t expected_rank = -1;
};
// As Dial, several at a time: all are greeted before a reply is waited for.  In the order of the
// targets, of which a few are enough: each that waits is a stranger to its listener meanwhile.
std::vector<Result<UniqueFd>> DialAll(std::span<const DialTarget> targets, const Secret& secret,
                                      Deadline deadline, const std::function<Status()>& look = {});
// Connects and says nothing: whether each address of the name refuses, since nobody listens there.
bool IsRefused(std::string_view address, Deadline deadline);

}  // namespace rabit

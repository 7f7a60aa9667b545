// TcpOptions: what can be tuned in the TCP transport.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/spin_times.h"
#include "transport/tcp/frame.h"

namespace rabit {

// What a test does to a frame that is about to be written.
enum class FrameFault { kNone, kFlipPayloadBit, kFlipHeaderBit, kDropConnection };
using FrameTap = std::function<FrameFault(int peer, const FrameHeader& header)>;

// Which payloads carry a checksum; headers always do.  kAuto: those that leave the host.
enum class PayloadChecks { kAuto, kOn, kOff };

struct TcpOptions {
  // Messages of a stream are striped over this many connections, from `stripe_bytes_min` on.
  int connections_per_stream = 1;
  size_t stripe_bytes_min = 1 << 20;

  // Of the greeting: connections of several transports of a rank come to one listener.
  std::string purpose = "tcp";

  // Empty: all.  Otherwise only these are connected, and the others are kInvalidArgument.
  std::vector<int> peers;

  // A broken connection must be back within this time, or the peer is lost.
  std::chrono::milliseconds reconnect_window{9000};
  // A connection on which frames were written, but nothing was acknowledged and nothing heard for
  // this long, has lost bytes or its way: it is broken and made anew.  0: never.
  std::chrono::milliseconds progress_timeout{3000};
  // A peer of which nothing is heard for this long is lost, whether somebody waits for it or not;
  // both ends beat.  0: no beats, for peers of which another connection tells.
  std::chrono::milliseconds heartbeat_timeout{0};
  // For peers that are silent for at most `timeout` (RABIT_HEARTBEAT_TIMEOUT).  Beats find out sooner
  // who has gone, on these links or on those of another connection; a living peer that gets hardly
  // any core takes long to connect.
  void SetTimes(std::chrono::milliseconds timeout, bool beats) {
    progress_timeout = timeout;
    reconnect_window = 3 * timeout;
    heartbeat_timeout = beats ? timeout : std::chrono::milliseconds(0);
  }
  // Closing waits this long for the peers to confirm that they have everything.
  std::chrono::milliseconds linger{1000};

  // Several peers send to one at once, in bursts.  A congestion control that paces by the rate that
  // it has seen when it was alone (BBR) overflows what lies in front of the receiver, and goes on.
  bool is_many_to_one = false;

  // Up to this size a message is copied, and its Send finishes when the kernel has it.  Larger ones
  // are sent from the caller's buffer and finish when the peer has acknowledged them.
  size_t copied_bytes_max = 64 * 1024;
  // Copies that wait for their acknowledgement; beyond this, copied messages wait for it too.
  size_t retained_bytes_max = 8 << 20;
  // Data of a link that nobody has asked for, while no operation of the link is in flight.
  size_t unexpected_bytes_soft = 64 * 1024;
  // Whole messages are kept for TcpLink::Take, however many nobody has asked for; they survive the
  // loss of the peer, whose last words they may be.
  bool keeps_messages = false;

  PayloadChecks payload_checks = PayloadChecks::kAuto;  // of what this rank sends
  int frame_attempts_max = 3;                // copies of one frame that may arrive corrupt
  int connections_without_progress_max = 8;  // in a row, before the peer is lost
  // How long waits look for data before they sleep.
  SpinTimes spin;
  // Calls that move more are waited for asleep, and so are larger messages of calls whose size is
  // not known.  Ranks that share a core work on them for long: a wait that has given its core away
  // would hear of its data late, where a sleeper is woken.
  size_t spin_bytes_max = SIZE_MAX;

  FrameTap tap;  // for tests; called with the link's send lock held
};

}  // namespace rabit

// Limits and options that the channels share.
#pragma once

#include <chrono>
#include <cstddef>

#include "base/spin_times.h"

namespace rabit {

inline constexpr size_t kChannelMessageBytesMax = 16 * 1024 * 1024;
// What may wait for one peer before Send says kResourceExhausted.
inline constexpr size_t kChannelQueueBytesMax = 64 * 1024 * 1024;

struct ChannelOptions {
  // How long Receive spins before it sleeps.
  SpinTimes spin;
  // A peer that is silent for this long is lost; a beat is sent eight times as often.
  std::chrono::milliseconds heartbeat_timeout{3000};
};

}  // namespace rabit

// Borrowed byte ranges, the deadline and the message tag: words that every layer uses.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace rabit {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// A point on the monotonic clock; wall time never matters.
using Deadline = std::chrono::steady_clock::time_point;

inline Deadline After(std::chrono::nanoseconds duration) {
  return std::chrono::steady_clock::now() + duration;
}

// "2.8 s"
inline std::string InSeconds(std::chrono::nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

// Separates messages between the same two ranks.  The top 8 bits are the stream (see StreamOf):
// messages of different streams never wait for each other.  The low 16 bits are free for the steps
// of one collective.
using Tag = uint64_t;
inline constexpr int kTagStepBits = 16;

inline constexpr Tag MakeTag(int stream, uint64_t sequence) {
  return (static_cast<Tag>(stream) << 56) |
         ((sequence << kTagStepBits) & 0x00ff'ffff'ffff'ffffULL);
}
inline constexpr int StreamOf(Tag tag) { return static_cast<int>(tag >> 56); }

}  // namespace rabit

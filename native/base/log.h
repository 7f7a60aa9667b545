// Logger: one line per event, to stderr or to a sink, with the rank in front.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace rabit {

enum class LogLevel : int32_t {
  kTrace = 0,
  kDebug = 1,
  kInfo = 2,
  kWarning = 3,
  kError = 4,
  kOff = 5
};

// "warning".
std::string_view Name(LogLevel level);

// Thread-safe.  Each line is written by one call, so lines of different ranks do not mix.  What a
// terminal would obey is shown as its code, ends of lines too: texts hold the names of tensors.
class Logger {
 public:
  using Sink = std::function<void(LogLevel level, std::string_view line)>;

  // `rank` -1: none is shown.  An empty sink is stderr; a sink is called by any thread, at most by
  // several at once.
  explicit Logger(LogLevel level = LogLevel::kWarning, int rank = -1, Sink sink = nullptr);

  bool IsEnabled(LogLevel level) const { return level >= level_; }
  void Write(LogLevel level, std::string_view text) const;
  void Debug(std::string_view text) const { Write(LogLevel::kDebug, text); }
  void Info(std::string_view text) const { Write(LogLevel::kInfo, text); }
  void Warning(std::string_view text) const { Write(LogLevel::kWarning, text); }
  void Error(std::string_view text) const { Write(LogLevel::kError, text); }

 private:
  const LogLevel level_;
  const std::string prefix_;
  const Sink sink_;
};

// At most one event per interval; counts what it kept back.  Thread-safe.
class RateLimit {
 public:
  explicit RateLimit(std::chrono::nanoseconds interval) : interval_(interval) {}

  // Whether an event may be shown; then `suppressed` is how many were kept back before it.
  bool Allow(uint64_t* suppressed);

 private:
  const std::chrono::nanoseconds interval_;
  std::atomic<int64_t> next_ns_{0};
  std::atomic<uint64_t> suppressed_{0};
};

}  // namespace rabit

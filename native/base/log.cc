#include "base/log.h"

#include <unistd.h>

#include <utility>

#include "base/printable.h"

namespace rabit {

std::string_view Name(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return "trace";
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      return "off";
  }
  return "unknown";
}

Logger::Logger(LogLevel level, int rank, Sink sink)
    : level_(level),
      prefix_(rank < 0 ? "rabit: " : "rabit[" + std::to_string(rank) + "]: "),
      sink_(std::move(sink)) {}

void Logger::Write(LogLevel level, std::string_view text) const {
  if (!IsEnabled(level) || level == LogLevel::kOff) return;
  std::string line = prefix_;
  // Names of tensors come from the program and from other ranks, and may hold control characters of
  // a terminal.
  line.append(Name(level)).append(": ").append(Printable(text));
  if (sink_) {
    sink_(level, line);
    return;
  }
  line += '\n';
  // One write keeps the line whole; there is nobody to tell if stderr is closed.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

bool RateLimit::Allow(uint64_t* suppressed) {
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::steady_clock::now().time_since_epoch())
                          .count();
  int64_t next = next_ns_.load(std::memory_order_relaxed);
  // Of several threads that find the time over, one wins the exchange and writes; the others count
  // as suppressed.
  if (now < next || !next_ns_.compare_exchange_strong(next, now + interval_.count())) {
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  *suppressed = suppressed_.exchange(0, std::memory_order_relaxed);
  return true;
}

}  // namespace rabit

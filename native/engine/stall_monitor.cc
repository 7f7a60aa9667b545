#include "engine/stall_monitor.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace rabit {
namespace {

constexpr size_t kLinesMax = 20;

std::string LimitText(int64_t abort_ms) {
  if (abort_ms <= 0) return " No time limit ends this: RABIT_STALL_ABORT is 0.";
  std::string seconds = std::to_string(abort_ms / 1000);
  if (abort_ms % 1000 != 0) seconds += "." + std::to_string(1000 + abort_ms % 1000).substr(1);
  return " The job fails when that takes " + seconds +
         " s, which is RABIT_STALL_ABORT (--stall-abort): lower it to end sooner.";
}

}  // namespace

StallMonitor::StallMonitor(const Logger& logger, int64_t warning_ms, int64_t abort_ms)
    : logger_(logger), warning_ms_(warning_ms), abort_ms_(abort_ms) {}

Deadline StallMonitor::NextCheck(bool has_open, Deadline now) const {
  if (warning_ms_ <= 0 || !has_open) return now + std::chrono::hours(1);
  return now + std::chrono::milliseconds(std::clamp<int64_t>(warning_ms_ / 4, 10, 1000));
}

void StallMonitor::Check(const Controller& controller, int64_t oldest_ns, size_t open,
                         Deadline now) {
  if (warning_ms_ <= 0 || open == 0) return;
  const int64_t now_ns = NanosOf(now);
  const int64_t waited_ms = (now_ns - oldest_ns) / 1'000'000;
  if (waited_ms < warning_ms_ || now_ns < next_report_ns_) return;
  next_report_ns_ = now_ns + warning_ms_ * 1'000'000;
  ++reports_;
  const std::string what =
      open == 1 ? "1 tensor waits" : std::to_string(open) + " tensors wait, the oldest";
  std::string text = "stall: " + what + " for " + std::to_string(waited_ms / 1000) +
                     " s: not every rank has submitted them. Every rank must submit the same "
                     "tensors; look at what the missing ranks are doing." +
                     LimitText(abort_ms_);
  const std::vector<std::string> waiting = controller.Waiting();
  for (size_t i = 0; i < waiting.size() && i < kLinesMax; ++i) text += "\n  " + waiting[i];
  if (waiting.size() > kLinesMax) {
    text += "\n  and " + std::to_string(waiting.size() - kLinesMax) + " more";
  }
  logger_.Warning(text);
}

}  // namespace rabit

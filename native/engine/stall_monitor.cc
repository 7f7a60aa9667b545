#include "engine/stall_monitor.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace rabit {
namespace {

constexpr size_t kLinesMax = 20;

std::string LimitText(int64_t abort_ms) {
  if (abort_ms <= 0) return "no time limit ends this (RABIT_STALL_ABORT is 0).";
  std::string seconds = std::to_string(abort_ms / 1000);
  if (abort_ms % 1000 != 0) seconds += "." + std::to_string(1000 + abort_ms % 1000).substr(1);
  return "the job fails after " + seconds + " s (RABIT_STALL_ABORT, --stall-abort).";
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
  // Of one stall each report comes after twice the time of the one before.
  const int64_t quiet_ms = oldest_ns == reported_oldest_ns_ ? 2 * reported_ms_ : warning_ms_;
  // Many tensors may stall one after another; the second condition keeps their reports apart.
  if (waited_ms < quiet_ms || now_ns < last_report_ns_ + warning_ms_ * 1'000'000) return;
  reported_oldest_ns_ = oldest_ns;
  reported_ms_ = waited_ms;
  last_report_ns_ = now_ns;
  ++reports_;
  Report(controller.Waiting(), waited_ms / 1000, open);
}

void StallMonitor::Report(const std::vector<std::string>& waiting, int64_t seconds,
                          size_t open) const {
  const size_t count = waiting.empty() ? open : waiting.size();
  const std::string what = count == 1 ? "1 tensor has" : std::to_string(count) + " tensors have";
  const std::string longest = count == 1 ? " waited " : " waited up to ";
  logger_.Warning("stall: " + what + longest + std::to_string(seconds) +
                  " s for ranks that have not submitted " + (count == 1 ? "it" : "them") +
                  ". See what they are doing; " + LimitText(abort_ms_));
  for (size_t i = 0; i < waiting.size() && i < kLinesMax; ++i)
    logger_.Warning("stall: " + waiting[i]);
  if (waiting.size() > kLinesMax) {
    logger_.Warning("stall: and " + std::to_string(waiting.size() - kLinesMax) + " more");
  }
}

}  // namespace rabit

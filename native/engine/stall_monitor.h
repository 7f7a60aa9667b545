// StallMonitor: names the tensors and the ranks that keep others waiting.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "control/controller.h"

namespace rabit {

// Engine thread only.
class StallMonitor {
 public:
  // `warning_ms` 0: never reports.  `abort_ms`: after which the controller ends the job, for the
  // text; 0: never.
  StallMonitor(const Logger& logger, int64_t warning_ms, int64_t abort_ms);

  // When Check wants to be called next; `has_open` tells whether this rank waits for anything.
  Deadline NextCheck(bool has_open, Deadline now) const;
  // Reports when it is time to, and of one stall ever more rarely; `oldest_ns` is when the oldest
  // open request was submitted.
  void Check(const Controller& controller, int64_t oldest_ns, size_t open, Deadline now);

  int64_t reports() const { return reports_; }

 private:
  void Report(const std::vector<std::string>& waiting, int64_t seconds, size_t open) const;

  const Logger& logger_;
  const int64_t warning_ms_;
  const int64_t abort_ms_;
  // Of the last report: when it came, which request was the oldest then, and for how long.
  int64_t last_report_ns_ = 0;
  int64_t reported_oldest_ns_ = 0;
  int64_t reported_ms_ = 0;
  int64_t reports_ = 0;
};

}  // namespace rabit

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
  // Reports when it is time to; `oldest_ns` is when the oldest open request was submitted.
  void Check(const Controller& controller, int64_t oldest_ns, size_t open, Deadline now);

  int64_t reports() const { return reports_; }

 private:
  const Logger& logger_;
  const int64_t warning_ms_;
  const int64_t abort_ms_;
  int64_t next_report_ns_ = 0;
  int64_t reports_ = 0;
};

}  // namespace rabit

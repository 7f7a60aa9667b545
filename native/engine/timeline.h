// Timeline: what happened to each tensor and when, as Chrome trace events (Perfetto reads them).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/dtype.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/line_file.h"

namespace rabit {

// The row of a tensor.  Names that the library gives often begin with the kind.
std::string TimelineRow(Kind kind, std::string_view name);

// Thread-safe.  Recording costs one atomic load while no timeline is open.  Memory is bounded:
// events that the disk is too slow for are dropped, and the file says how many.
class Timeline {
 public:
  Timeline(int rank, const Logger& logger);

  Status Start(const std::string& path, bool mark_cycles);
  Status Stop();

  // Whether events still reach the file.
  bool is_active() const {
    return is_active_.load(std::memory_order_relaxed) && file_.takes_lines();
  }

  // One row per `row` ("allreduce.conv1.weight"); times are NowNs.  `arguments` is the inside of a
  // JSON object, or empty.
  void Span(std::string_view row, std::string_view name, int64_t begin_ns, int64_t end_ns,
            std::string_view arguments = {});
  void MarkCycle(uint64_t cycle);

 private:
  int32_t RowNumber(std::string_view row);
  void Add(std::string_view line);
  std::string Metadata(std::string_view name, int32_t row, std::string_view argument,
                       std::string_view value) const;

  const int rank_;
  std::atomic<bool> is_active_{false};
  std::atomic<bool> marks_cycles_{false};
  std::atomic<int64_t> origin_ns_{0};
  std::atomic<uint64_t> dropped_{0};

  Mutex control_mutex_;  // Start and Stop; before mutex_
  LineFile file_;

  Mutex mutex_;
  std::unordered_map<std::string, int32_t> rows_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

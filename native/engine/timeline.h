// Timeline: what happened to each tensor and when, as Chrome trace events (Perfetto reads them).
// The file is a whole JSON array after every write, so that it can be read while the job runs, and
// after the job was killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"

namespace rabit {

// The row of a tensor.  Names that the library gives often begin with the kind.
std::string TimelineRow(Kind kind, std::string_view name);

// Thread-safe.  Recording costs one atomic load while no timeline is open; events are written by a
// thread of the timeline's own within 0.1 s.  Memory is bounded: events that the disk is too slow
// for are dropped, and the file says how many.  A disk that takes no more ends the timeline with a
// warning, never the job.
class Timeline {
 public:
  Timeline(int rank, const Logger& logger) : rank_(rank), logger_(logger) {}
  ~Timeline();

  Status Start(const std::string& path, bool mark_cycles);
  Status Stop();

  bool is_active() const { return is_active_.load(std::memory_order_relaxed); }

  // One row per `row` ("allreduce.conv1.weight"); times are NowNs.  `arguments` is the inside of a
  // JSON object, or empty.
  void Span(std::string_view row, std::string_view name, int64_t begin_ns, int64_t end_ns,
            std::string arguments = {});
  void SpanUntilNow(std::string_view row, std::string_view name, int64_t begin_ns,
                    std::string arguments);
  void MarkCycle(uint64_t cycle);

 private:
  struct Event {
    int32_t row;
    int64_t begin_ns;
    int64_t end_ns;  // -1: an instant
    std::string name;
    std::string arguments;
  };

  int32_t RowNumber(std::string_view row) RABIT_REQUIRES(mutex_);
  void Add(Event event) RABIT_REQUIRES(mutex_);
  void WriteLoop();
  void WriteEvents(const std::vector<Event>& events,
                   const std::vector<std::pair<int32_t, std::string>>& new_rows);
  void AddLine(const std::string& line);
  void WriteLines();
  void EndEarly(int error);
  int WriteAt(std::string_view text, int64_t offset);  // 0, or an errno

  const int rank_;
  const Logger& logger_;
  std::atomic<bool> is_active_{false};
  std::atomic<bool> marks_cycles_{false};

  Mutex control_mutex_;  // Start and Stop; before mutex_
  std::thread writer_ RABIT_GUARDED_BY(control_mutex_);

  // The writer's, between Start and Stop.
  std::string path_;
  int file_ = -1;
  std::string lines_;  // not yet in the file
  bool has_lines_ = false;
  int64_t end_ = 0;  // of the last line in the file; the closing bracket follows
  bool ends_early_ = false;

  Mutex mutex_;
  CondVar changed_;
  bool wants_stop_ RABIT_GUARDED_BY(mutex_) = false;
  int64_t origin_ns_ RABIT_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ RABIT_GUARDED_BY(mutex_) = 0;
  std::vector<Event> events_ RABIT_GUARDED_BY(mutex_);
  std::unordered_map<std::string, int32_t> rows_ RABIT_GUARDED_BY(mutex_);
  std::vector<std::pair<int32_t, std::string>> new_rows_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

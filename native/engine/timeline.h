// Timeline: what happened to each tensor and when, as Chrome trace events (Perfetto reads them).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace rabit {

// Thread-safe.  Recording costs one atomic load while no timeline is open; events are written by a
// thread of the timeline's own within 0.1 s.  Memory is bounded: events that the disk is too slow
// for are dropped, and the file says how many.
class Timeline {
 public:
  explicit Timeline(int rank) : rank_(rank) {}
  ~Timeline();

  Status Start(const std::string& path, bool mark_cycles);
  Status Stop();

  bool is_active() const { return is_active_.load(std::memory_order_relaxed); }

  // One row per `row` ("allreduce.conv1.weight"); times are NowNs.  `arguments` is the inside of a
  // JSON object, or empty.
  void Span(std::string_view row, std::string_view name, int64_t begin_ns, int64_t end_ns,
            std::string arguments = {});
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
  void WriteLine(const std::string& line);

  const int rank_;
  std::atomic<bool> is_active_{false};
  std::atomic<bool> marks_cycles_{false};

  Mutex control_mutex_;  // Start and Stop; before mutex_
  std::thread writer_ RABIT_GUARDED_BY(control_mutex_);
  std::FILE* file_ = nullptr;  // the writer's, between Start and Stop
  bool has_lines_ = false;

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

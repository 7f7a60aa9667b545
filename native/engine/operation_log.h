// OperationLog: one line for every operation of this rank that has finished, as CSV.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"

namespace rabit {

// Thread-safe.  Costs one atomic load for each operation while no log is open.  Lines are written
// by a thread of the log's own, in the order in which operations finish, and none is left out: a
// log that cannot be written any more ends with a warning and a last line that says so.
class OperationLog {
 public:
  struct Entry {
    std::string_view name;
    Kind kind = Kind::kAllreduce;
    DType dtype = DType::kFloat32;
    GroupId group = kWorld;
    int64_t bytes = 0;     // of the larger of input and output on this rank
    int64_t begin_ns = 0;  // when it was submitted; NowNs
    int64_t end_ns = 0;
    bool is_ok = true;
  };

  OperationLog(int rank, const Logger& logger) : rank_(rank), logger_(logger) {}
  ~OperationLog() { Stop(); }

  // Once.
  Status Start(const std::string& path);
  // All that was added is in the file.
  void Stop();

  bool is_active() const { return is_active_.load(std::memory_order_relaxed); }
  void Add(const Entry& entry);

 private:
  void WriteLoop();
  bool Write(std::string_view text);

  const int rank_;
  const Logger& logger_;
  std::atomic<bool> is_active_{false};
  int file_ = -1;       // the writer's, between Start and Stop
  std::string path_;    // constant after Start
  std::thread writer_;  // of Start and Stop

  Mutex mutex_;
  CondVar changed_;
  bool wants_stop_ RABIT_GUARDED_BY(mutex_) = false;
  std::string lines_ RABIT_GUARDED_BY(mutex_);  // not yet with the writer
};

}  // namespace rabit

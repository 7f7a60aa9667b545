// LineFile: a text file that grows while the job runs; whoever adds a line never waits for the
// disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"

namespace rabit {

// A separator stands before each line but the first.  After every write the closing text is behind
// the last one, so that the file can be read while the job runs and after it was killed.
struct LineFileForm {
  std::string_view name;  // "log"
  std::string_view separator;
  std::string_view closing;
  std::string_view closing_early;  // of a file that lacks lines
  size_t waiting_bytes_max;        // for a disk that is slow
};

// Thread-safe, apart from Open and Close, which may come again after each other.  A thread of its
// own writes lines, in the order in which they are added, within 0.1 s.  A disk that takes no more
// ends the file with a warning, never the job.
class LineFile {
 public:
  LineFile(int rank, const Logger& logger, const LineFileForm& form)
      : rank_(rank), logger_(logger), form_(form) {}
  ~LineFile() { (void)Close(); }

  Status Open(const std::string& path, std::string_view first);
  bool takes_lines() const { return takes_lines_.load(std::memory_order_relaxed); }
  // False: too many wait for the disk, and this one is left out.
  bool Add(std::string_view line);
  // The last line, for which there is always room.
  void End(std::string_view line);
  // All lines are in the file, or the status says that the disk did not take them.
  Status Close();

 private:
  void WriteLoop();
  void Write(std::string_view lines);
  int WriteAt(std::string_view text, int64_t offset);  // 0, or an errno
  void EndEarly(int error);

  const int rank_;
  const Logger& logger_;
  const LineFileForm form_;
  std::atomic<bool> takes_lines_{false};
  std::thread writer_;  // of Open and Close

  // The writer's, between Open and Close.
  std::string path_;
  int file_ = -1;
  int64_t end_ = 0;  // of the last line in the file; the closing text follows
  int64_t before_ = 0;  // the same, before the last write
  bool ends_early_ = false;

  Mutex mutex_;
  CondVar changed_;
  bool wants_close_ RABIT_GUARDED_BY(mutex_) = false;
  std::string lines_ RABIT_GUARDED_BY(mutex_);  // not yet with the writer
};

}  // namespace rabit

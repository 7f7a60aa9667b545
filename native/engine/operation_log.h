// OperationLog: one line for every operation of this rank that has finished, as CSV.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/status.h"
#include "engine/line_file.h"

namespace rabit {

// Thread-safe.  Costs one atomic load for each operation while no log is open.  Lines are in the
// order in which operations finish, and none is left out: a log that cannot be written any more
// ends with a warning and a last line that says so.
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

  OperationLog(int rank, const Logger& logger);

  // Once.
  Status Start(const std::string& path);
  // All that was added is in the file.
  void Stop() { (void)file_.Close(); }

  bool is_active() const { return file_.takes_lines(); }
  void Add(const Entry& entry);

 private:
  LineFile file_;
};

}  // namespace rabit

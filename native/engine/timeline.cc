#include "engine/timeline.h"

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/json_writer.h"

namespace rabit {
namespace {

constexpr size_t kRowsMax = 1 << 16;
constexpr LineFileForm kTimelineForm = {"timeline", ",\n", "\n]\n", "\n]\n", 32 << 20};

std::string Micros(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(ns) / 1e3);
  return text;
}

}  // namespace

std::string TimelineRow(Kind kind, std::string_view name) {
  const std::string prefix = std::string(Name(kind)) + ".";
  return name.starts_with(prefix) ? std::string(name) : prefix + std::string(name);
}

Timeline::Timeline(int rank, const Logger& logger)
    : rank_(rank), file_(rank, logger, kTimelineForm) {}

Status Timeline::Start(const std::string& path, bool mark_cycles) {
  MutexLock control(control_mutex_);
  if (is_active_) {
    return InvalidArgument("rank " + std::to_string(rank_) +
                           ": a timeline is open already: only one can be; stop it first");
  }
  {
    MutexLock lock(mutex_);
    rows_.clear();
  }
  origin_ns_ = NowNs();
  dropped_ = 0;
  marks_cycles_ = mark_cycles;
  const std::string process = "rank " + std::to_string(rank_);
  RABIT_RETURN_IF_ERROR(file_.Open(path, "[\n" + Metadata("process_name", 0, "name", process)));
  is_active_ = true;
  return Status();
}

Status Timeline::Stop() {
  MutexLock control(control_mutex_);
  // Lanes see it at their next event.
  if (!is_active_.exchange(false)) {
    return InvalidArgument("rank " + std::to_string(rank_) +
                           ": no timeline is open: nothing to stop; start one first");
  }
  const std::string dropped = "events dropped: " + std::to_string(dropped_);
  file_.End(Metadata("process_labels", 0, "labels", dropped));
  return file_.Close();
}

void Timeline::Span(std::string_view row, std::string_view name, int64_t begin_ns, int64_t end_ns,
                    std::string_view arguments) {
  if (!is_active()) return;
  // A tensor may be older than the timeline.
  const int64_t origin_ns = origin_ns_;
  begin_ns = std::max(begin_ns, origin_ns);
  std::string line = "{\"name\":" + JsonQuoted(name) + ",\"pid\":" + std::to_string(rank_) +
                     ",\"tid\":" + std::to_string(RowNumber(row)) +
                     ",\"ts\":" + Micros(begin_ns - origin_ns) +
                     ",\"ph\":\"X\",\"dur\":" + Micros(std::max(end_ns - begin_ns, int64_t{0}));
  if (!arguments.empty()) line.append(",\"args\":{").append(arguments).append("}");
  Add(line + "}");
}

void Timeline::MarkCycle(uint64_t cycle) {
  if (!is_active() || !marks_cycles_.load(std::memory_order_relaxed)) return;
  Add("{\"name\":\"CYCLE_START\",\"pid\":" + std::to_string(rank_) +
      ",\"tid\":0,\"ts\":" + Micros(NowNs() - origin_ns_) +
      ",\"ph\":\"i\",\"s\":\"p\",\"args\":{\"cycle\":" + std::to_string(cycle) + "}}");
}

int32_t Timeline::RowNumber(std::string_view row) {
  MutexLock lock(mutex_);
  const auto found = rows_.find(std::string(row));
  if (found != rows_.end()) return found->second;
  // Row 0 is that of the process: tensors beyond the limit share it rather than grow the table with
  // each new name.
  if (rows_.size() >= kRowsMax) return 0;
  const auto number = static_cast<int32_t>(rows_.size()) + 1;
  // One that has no name in the file yet gets it with its next event.
  if (!file_.Add(Metadata("thread_name", number, "name", row))) return 0;
  rows_.emplace(row, number);
  return number;
}

void Timeline::Add(std::string_view line) {
  if (!file_.Add(line)) ++dropped_;
}

std::string Timeline::Metadata(std::string_view name, int32_t row, std::string_view argument,
                               std::string_view value) const {
  return "{\"ph\":\"M\",\"name\":" + JsonQuoted(name) + ",\"pid\":" + std::to_string(rank_) +
         (row > 0 ? ",\"tid\":" + std::to_string(row) : "") + ",\"args\":{" + JsonQuoted(argument) +
         ":" + JsonQuoted(value) + "}}";
}

}  // namespace rabit

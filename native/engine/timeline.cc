#include "engine/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/json_writer.h"

namespace rabit {
namespace {

constexpr size_t kEventsMax = 1 << 17;
constexpr size_t kRowsMax = 1 << 16;
constexpr auto kFlushInterval = std::chrono::milliseconds(50);
constexpr size_t kWriteBytes = 8192;
constexpr std::string_view kClosing = "\n]\n";

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

Timeline::~Timeline() {
  if (is_active()) (void)Stop();
}

Status Timeline::Start(const std::string& path, bool mark_cycles) {
  MutexLock control(control_mutex_);
  if (is_active()) {
    return InvalidArgument("rank " + std::to_string(rank_) +
                           ": a timeline is open already: only one can be; stop it first");
  }
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) {
    return InvalidArgument("rank " + std::to_string(rank_) + ": cannot write the timeline '" +
                           path + "': " + std::strerror(errno) +
                           "; pass a path in a folder that exists and is writable");
  }
  // The writer thread does not run yet, so what it owns is set here without mutex_; control_mutex_
  // keeps other Starts out.
  path_ = path;
  lines_ = "[\n";
  has_lines_ = ends_early_ = false;
  end_ = 0;
  {
    MutexLock lock(mutex_);
    wants_stop_ = false;
    origin_ns_ = NowNs();
    dropped_ = 0;
    events_.clear();
    rows_.clear();
    new_rows_.clear();
  }
  AddLine("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" + std::to_string(rank_) +
          ",\"args\":{\"name\":\"rank " + std::to_string(rank_) + "\"}}");
  WriteLines();
  marks_cycles_ = mark_cycles;
  is_active_ = true;
  writer_ = std::thread([this] { WriteLoop(); });
  return Status();
}

Status Timeline::Stop() {
  MutexLock control(control_mutex_);
  if (!is_active()) {
    return InvalidArgument("rank " + std::to_string(rank_) +
                           ": no timeline is open: nothing to stop; start one first");
  }
  // Lanes see it at their next event; an event that comes in between is written with the last batch
  // or dropped at the next Start.
  is_active_ = false;
  {
    MutexLock lock(mutex_);
    wants_stop_ = true;
    changed_.NotifyAll();
  }
  // Without mutex_, which the writer needs to take its last events; control_mutex_ is not one of
  // its locks.
  writer_.join();
  uint64_t dropped = 0;
  {
    MutexLock lock(mutex_);
    dropped = dropped_;
  }
  AddLine("{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":" + std::to_string(rank_) +
          ",\"args\":{\"labels\":\"events dropped: " + std::to_string(dropped) + "\"}}");
  WriteLines();
  // Some file systems tell only now that they have no room.
  const bool is_closed = ::close(std::exchange(file_, -1)) == 0;
  if (is_closed && !ends_early_) return Status();
  return ResourceExhausted("rank " + std::to_string(rank_) + ": the timeline '" + path_ +
                           "' is incomplete: the disk did not take it all; free some space and "
                           "record again");
}

void Timeline::Span(std::string_view row, std::string_view name, int64_t begin_ns, int64_t end_ns,
                    std::string arguments) {
  if (!is_active()) return;
  MutexLock lock(mutex_);
  Add({RowNumber(row), begin_ns, end_ns, std::string(name), std::move(arguments)});
}

void Timeline::SpanUntilNow(std::string_view row, std::string_view name, int64_t begin_ns,
                            std::string arguments) {
  Span(row, name, begin_ns, NowNs(), std::move(arguments));
}

void Timeline::MarkCycle(uint64_t cycle) {
  if (!is_active() || !marks_cycles_.load(std::memory_order_relaxed)) return;
  MutexLock lock(mutex_);
  Add({0, NowNs(), -1, "CYCLE_START", "\"cycle\":" + std::to_string(cycle)});
}

int32_t Timeline::RowNumber(std::string_view row) {
  auto found = rows_.find(std::string(row));
  if (found != rows_.end()) return found->second;
  // Row 0 is that of the process: tensors beyond the limit share it rather than grow the table with
  // each new name.
  if (rows_.size() >= kRowsMax) return 0;
  const auto number = static_cast<int32_t>(rows_.size()) + 1;
  rows_.emplace(row, number);
  new_rows_.emplace_back(number, row);
  return number;
}

void Timeline::Add(Event event) {
  // A lane never waits for the disk: what the writer cannot take in time is counted and dropped.
  if (events_.size() >= kEventsMax) {
    ++dropped_;
    return;
  }
  events_.push_back(std::move(event));
}

void Timeline::WriteLoop() {
  bool is_last = false;
  while (!is_last) {
    std::vector<Event> events;
    std::vector<std::pair<int32_t, std::string>> new_rows;
    {
      MutexLock lock(mutex_);
      const Deadline flush_at = After(kFlushInterval);
      // The writer is woken for the stop only, and otherwise sleeps its interval: events do not
      // wake it, or it would take a core from the lanes.
      while (!wants_stop_ && changed_.WaitUntil(mutex_, flush_at)) {
      }
      is_last = wants_stop_;
      events.swap(events_);
      new_rows.swap(new_rows_);
    }
    WriteEvents(events, new_rows);
  }
}

void Timeline::WriteEvents(const std::vector<Event>& events,
                           const std::vector<std::pair<int32_t, std::string>>& new_rows) {
  if (events.empty() && new_rows.empty()) return;
  const std::string process = ",\"pid\":" + std::to_string(rank_);
  int64_t origin_ns = 0;
  {
    MutexLock lock(mutex_);
    origin_ns = origin_ns_;
  }
  for (const auto& [number, row] : new_rows) {
    AddLine("{\"ph\":\"M\",\"name\":\"thread_name\"" + process +
            ",\"tid\":" + std::to_string(number) + ",\"args\":{\"name\":" + JsonQuoted(row) + "}}");
  }
  for (const Event& event : events) {
    // A tensor may be older than the timeline.
    const int64_t begin_ns = std::max(event.begin_ns, origin_ns);
    std::string line = "{\"name\":" + JsonQuoted(event.name) + process +
                       ",\"tid\":" + std::to_string(event.row) +
                       ",\"ts\":" + Micros(begin_ns - origin_ns);
    if (event.end_ns < 0) {
      line += ",\"ph\":\"i\",\"s\":\"p\"";
    } else {
      line += ",\"ph\":\"X\",\"dur\":" + Micros(std::max(event.end_ns - begin_ns, int64_t{0}));
    }
    if (!event.arguments.empty()) line += ",\"args\":{" + event.arguments + "}";
    AddLine(line + "}");
  }
  WriteLines();
}

void Timeline::AddLine(const std::string& line) {
  if (has_lines_) lines_ += ",\n";
  has_lines_ = true;
  lines_ += line;
  if (lines_.size() >= kWriteBytes)
    WriteLines();  // of a disk that fills up, all but the last are kept
}

// One write puts the lines where the closing bracket was, and a bracket behind them.
void Timeline::WriteLines() {
  std::string text = std::exchange(lines_, {});
  if (ends_early_) return;
  const auto bytes = static_cast<int64_t>(text.size());
  text += kClosing;
  if (const int error = WriteAt(text, end_); error != 0) return EndEarly(error);
  end_ += bytes;
}

// What came before stays readable: the bracket goes where it was, in room that the file has.
void Timeline::EndEarly(int error) {
  ends_early_ = true;
  const bool is_closed = end_ > 0 && WriteAt(kClosing, end_) == 0 &&
                         ::ftruncate(file_, end_ + static_cast<int64_t>(kClosing.size())) == 0;
  logger_.Warning("the timeline '" + path_ + "' ends here, after " + std::to_string(end_) +
                  " bytes: " + std::strerror(error) + ". " +
                  (is_closed ? "What is in it can be read; the" : "It cannot be read; the") +
                  " job continues without it. Free some space, or pass a path on another disk.");
}

int Timeline::WriteAt(std::string_view text, int64_t offset) {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(file_, text.data(), text.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    text.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
  return 0;
}

}  // namespace rabit

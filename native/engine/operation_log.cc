#include "engine/operation_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"

namespace rabit {
namespace {

// Lines wait so long, or until there are many.
constexpr auto kWriteInterval = std::chrono::milliseconds(200);
constexpr size_t kWriteAtBytes = 64 << 10;
// What may wait for a disk that is slow.
constexpr size_t kWaitingBytesMax = 64 << 20;
constexpr std::string_view kHeader = "name,kind,type,group,bytes,begin_us,us,is_ok\n";
// Whoever adds up a log must not take a part of it for all.
constexpr std::string_view kIncomplete = "# incomplete: the disk did not take the rest\n";

void AppendName(std::string& line, std::string_view name) {
  line += '"';
  for (const char c : Printable(name)) {
    if (c == '"') line += '"';
    line += c;
  }
  line += '"';
}

void AppendMicros(std::string& line, int64_t ns) {
  line += std::to_string(ns / 1000) + '.';
  const std::string rest = std::to_string(ns % 1000);
  line.append(3 - rest.size(), '0');
  line += rest;
}

}  // namespace

Status OperationLog::Start(const std::string& path) {
  path_ = path;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) {
    return InvalidArgument("rank " + std::to_string(rank_) + ": cannot write the log '" + path +
                           "': " + std::strerror(errno) +
                           "; name a file in a folder that exists and is writable");
  }
  {
    MutexLock lock(mutex_);
    lines_ = kHeader;
  }
  is_active_ = true;
  writer_ = std::thread([this] { WriteLoop(); });
  return Status();
}

void OperationLog::Stop() {
  is_active_ = false;
  if (!writer_.joinable()) return;
  {
    MutexLock lock(mutex_);
    wants_stop_ = true;
    changed_.NotifyAll();
  }
  writer_.join();
  // Some file systems tell only now that they have no room.
  if (::close(std::exchange(file_, -1)) != 0) {
    logger_.Warning("the log '" + path_ + "' is incomplete: " + std::strerror(errno));
  }
}

void OperationLog::Add(const Entry& entry) {
  std::string line;
  AppendName(line, entry.name);
  line += ',';
  line += Name(entry.kind);
  line += ',';
  line += Name(entry.dtype);
  line += ',' + std::to_string(entry.group) + ',' + std::to_string(entry.bytes) + ',';
  AppendMicros(line, entry.begin_ns);
  line += ',';
  AppendMicros(line, entry.end_ns - entry.begin_ns);
  line += entry.is_ok ? ",1\n" : ",0\n";
  MutexLock lock(mutex_);
  // The line is made outside the lock: lanes that finish at the same time would queue up behind its
  // formatting.
  const size_t before = lines_.size();
  if (before > kWaitingBytesMax) {
    // The first thread beyond the limit marks the end, once; later ones find the log inactive.
    if (is_active_.exchange(false)) lines_ += kIncomplete;
    return;
  }
  lines_ += line;
  // Only the line that crosses the limit wakes the writer, or each one after it would.
  if (before < kWriteAtBytes && lines_.size() >= kWriteAtBytes) changed_.NotifyAll();
}

void OperationLog::WriteLoop() {
  bool is_whole = true;
  for (bool is_last = false; !is_last;) {
    std::string lines;
    {
      MutexLock lock(mutex_);
      const Deadline deadline = After(kWriteInterval);
      while (!wants_stop_ && lines_.size() < kWriteAtBytes) {
        if (!changed_.WaitUntil(mutex_, deadline)) break;
      }
      is_last = wants_stop_;
      // The disk is written to without the lock; lanes go on with an empty string.
      lines.swap(lines_);
    }
    if (is_whole && !Write(lines)) {
      is_whole = is_active_ = false;
      logger_.Warning("the log '" + path_ + "' ends here: " + std::strerror(errno));
    }
  }
}

bool OperationLog::Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace rabit

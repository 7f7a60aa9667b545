#include "engine/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace rabit {
namespace {

// Lines wait so long, or until there are many: one at a time would take a core from the lanes.
constexpr auto kWriteInterval = std::chrono::milliseconds(50);
constexpr size_t kWriteAtBytes = 64 << 10;
// Of a disk that fills up, all lines but the last of these are kept.
constexpr size_t kWriteBytes = 8 << 10;

}  // namespace

Status LineFile::Open(const std::string& path, std::string_view first) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) {
    return InvalidArgument("rank " + std::to_string(rank_) + ": cannot write the " +
                           std::string(form_.name) + " '" + path + "': " + std::strerror(errno) +
                           "; name a file in a folder that exists and is writable");
  }
  if (::lseek(file_, 0, SEEK_CUR) < 0) {
    ::close(std::exchange(file_, -1));
    return InvalidArgument("rank " + std::to_string(rank_) + ": the " + std::string(form_.name) +
                           " '" + path + "' cannot go into a pipe; name a file");
  }
  path_ = path;
  end_ = before_ = 0;
  ends_early_ = false;
  Write(first);
  {
    MutexLock lock(mutex_);
    wants_close_ = false;
    lines_.clear();
  }
  takes_lines_ = !ends_early_;
  writer_ = std::thread([this] { WriteLoop(); });
  return Status();
}

bool LineFile::Add(std::string_view line) {
  MutexLock lock(mutex_);
  if (!takes_lines_) return true;
  const size_t before = lines_.size();
  if (before > form_.waiting_bytes_max) return false;
  lines_ += form_.separator;
  lines_ += line;
  // Only the line that crosses the limit wakes the writer, or each one after it would.
  if (before < kWriteAtBytes && lines_.size() >= kWriteAtBytes) changed_.NotifyAll();
  return true;
}

void LineFile::End(std::string_view line) {
  MutexLock lock(mutex_);
  // Of several threads that find no room the first one ends the file.
  if (!takes_lines_.exchange(false)) return;
  lines_ += form_.separator;
  lines_ += line;
}

Status LineFile::Close() {
  takes_lines_ = false;
  if (!writer_.joinable()) return Status();
  {
    MutexLock lock(mutex_);
    wants_close_ = true;
    changed_.NotifyAll();
  }
  writer_.join();
  // Some file systems report only now that they have no room.
  const bool is_closed = ::close(std::exchange(file_, -1)) == 0;
  if (is_closed && !ends_early_) return Status();
  return ResourceExhausted("rank " + std::to_string(rank_) + ": the " + std::string(form_.name) +
                           " '" + path_ +
                           "' is incomplete: the disk did not take it all; free "
                           "some space and record again");
}

void LineFile::WriteLoop() {
  for (bool is_last = false; !is_last;) {
    std::string lines;
    {
      MutexLock lock(mutex_);
      const Deadline deadline = After(kWriteInterval);
      while (!wants_close_ && lines_.size() < kWriteAtBytes) {
        if (!changed_.WaitUntil(mutex_, deadline)) break;
      }
      is_last = wants_close_;
      // The disk is written to without the lock; lanes go on with an empty string.
      lines.swap(lines_);
    }
    for (std::string_view left = lines; !left.empty();) {
      const size_t cut =
          left.size() <= kWriteBytes ? left.npos : left.find(form_.separator, kWriteBytes);
      Write(left.substr(0, cut));
      left.remove_prefix(std::min(cut, left.size()));
    }
  }
}

// One write puts the lines where the closing text was, and closes the file behind them.
void LineFile::Write(std::string_view lines) {
  if (ends_early_) return;
  const int error = WriteAt(std::string(lines).append(form_.closing), end_);
  if (error != 0) return EndEarly(error);
  before_ = std::exchange(end_, end_ + static_cast<int64_t>(lines.size()));
}

// The lines before stay readable: the closing text goes behind the last of them or, where it finds
// no room there, in the place of those that were written last.
void LineFile::EndEarly(int error) {
  ends_early_ = true;
  takes_lines_ = false;
  bool is_closed = end_ > 0 && WriteAt(form_.closing_early, end_) == 0;
  if (!is_closed && before_ > 0) {
    end_ = before_;
    is_closed = WriteAt(form_.closing_early, end_) == 0;
  }
  const int64_t whole = end_ + static_cast<int64_t>(form_.closing_early.size());
  is_closed = is_closed && ::ftruncate(file_, whole) == 0;
  logger_.Warning("the " + std::string(form_.name) + " '" + path_ + "' ends here, after " +
                  std::to_string(end_) + " bytes: " + std::strerror(error) + ". " +
                  (is_closed ? "What is in it can be read; the" : "It cannot be read; the") +
                  " job continues without it. Free some space, or pass a path on another disk.");
}

int LineFile::WriteAt(std::string_view text, int64_t offset) {
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

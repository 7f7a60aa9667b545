// CommandQueue: small jobs that only the engine thread may do.
#pragma once

#include <functional>
#include <vector>

#include "base/mutex.h"

namespace rabit {

// Thread-safe.
class CommandQueue {
 public:
  // False after Close: the command will not run.
  bool Push(std::function<void()> command) {
    MutexLock lock(mutex_);
    if (is_closed_) return false;
    commands_.push_back(std::move(command));
    return true;
  }
  std::vector<std::function<void()>> TakeAll() {
    MutexLock lock(mutex_);
    return std::move(commands_);
  }
  void Close() {
    MutexLock lock(mutex_);
    is_closed_ = true;
  }

 private:
  Mutex mutex_;
  bool is_closed_ RABIT_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> commands_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

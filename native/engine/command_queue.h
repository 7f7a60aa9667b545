// CommandQueue: what is to be done to the core, between two steps.
#pragma once

#include <functional>
#include <vector>

#include "base/mutex.h"

namespace rabit {

class EngineCore;

// Thread-safe.
class CommandQueue {
 public:
  using Command = std::function<void(EngineCore& core)>;

  // False after Close: the command will not run.
  bool Push(Command command) {
    MutexLock lock(mutex_);
    if (is_closed_) return false;
    commands_.push_back(std::move(command));
    return true;
  }
  std::vector<Command> TakeAll() {
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
  std::vector<Command> commands_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

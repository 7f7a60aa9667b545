// SingleCopyTrial: whether reading a peer's memory works here, and whether it pays.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "base/result.h"

namespace rabit {

// Memory of ours that peers read while they connect.
class SingleCopyTrial {
 public:
  static constexpr size_t kBytes = 256 * 1024;

  // Made when it is first asked for, and never given back: peers read it at their time.
  static Result<SingleCopyTrial*> OfThisProcess();

  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_.get()); }
  // Unpredictable: a peer that finds it has read our memory and no other process's.
  uint64_t value() const { return value_; }

  // Reads the trial memory of another process; OK if it is there, else why it cannot be read.
  Status TryRead(int pid, uint64_t address, uint64_t value) const;
  // After TryRead: whether one process_vm_readv takes less time than the two copies through a
  // ring.  The kernel looks up every page, which on virtual machines costs more than the copy that
  // it saves (measured: 14 GB/s against 28 GB/s through the ring).
  // Measured with the first peer that the process has: it is the same with all of a host.
  bool IsFaster(int pid, uint64_t address);
  // False when that has been measured, and does not pay: then no peer need be tried.
  bool MayBeFaster();

 private:
  explicit SingleCopyTrial(uint64_t value);
  bool Measure(int pid, uint64_t address) const;

  const uint64_t value_;
  const std::unique_ptr<std::byte[]> memory_;
  Mutex mutex_;
  std::optional<bool> is_faster_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

// SingleCopyTrial: whether reading a peer's memory works here, and whether it pays.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"

namespace rabit {

// Memory of ours that peers read while they connect; lives until all of them are done.
class SingleCopyTrial {
 public:
  static constexpr size_t kBytes = 256 * 1024;

  // `value` is unpredictable: a peer that finds it has read our memory and no other process's.
  explicit SingleCopyTrial(uint64_t value);

  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_.get()); }
  uint64_t value() const { return value_; }

  // Reads the trial memory of another process; OK if it is there, else why it cannot be read.
  Status TryRead(int pid, uint64_t address, uint64_t value);
  // After TryRead: whether one process_vm_readv takes less time than the two copies through a
  // ring.  The kernel looks up every page, which on virtual machines costs more than the copy that
  // it saves (measured: 14 GB/s against 28 GB/s through the ring).
  // Measured with the first peer: it is the same with all of a host.
  bool IsFaster(int pid, uint64_t address);

 private:
  const uint64_t value_;
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<std::byte[]> copy_;
  std::optional<bool> is_faster_;
};

}  // namespace rabit

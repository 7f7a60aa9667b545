// PinnedPool: memory of the host that devices copy from and to, within a budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>

#include "base/device/device.h"
#include "base/json_writer.h"
#include "base/mutex.h"

namespace rabit {

class PinnedPool;

// Memory out of the pool, which has it back afterwards; move-only, empty when it was made without
// arguments.
class PinnedBlock {
 public:
  PinnedBlock() = default;
  PinnedBlock(PinnedBlock&&) noexcept = default;
  PinnedBlock& operator=(PinnedBlock&& other) noexcept;
  ~PinnedBlock();

  explicit operator bool() const { return static_cast<bool>(memory_); }
  std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }
  size_t bytes() const { return bytes_; }

 private:
  friend class PinnedPool;
  PinnedBlock(std::shared_ptr<PinnedPool> pool, PinnedMemory memory, size_t bytes)
      : pool_(std::move(pool)), memory_(std::move(memory)), bytes_(bytes) {}

  std::shared_ptr<PinnedPool> pool_;
  PinnedMemory memory_;
  size_t bytes_ = 0;
};

// Nobody waits for memory: a lane that waited here for another lane, whose peer waits in the same
// way for this lane's peer, would wait for ever.  What finds no room is copied piece by piece.
// Thread-safe.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  explicit PinnedPool(size_t limit) : limit_(limit) {}
  ~PinnedPool();

  // At least `bytes`.  Empty: the budget has no room for them at the moment.
  Result<PinnedBlock> Take(const std::shared_ptr<DeviceDriver>& driver, int device, size_t bytes);
  // The same, and over the budget if that has no room: what the caller cannot do without.
  Result<PinnedBlock> TakeAnyway(const std::shared_ptr<DeviceDriver>& driver, int device,
                                 size_t bytes);
  // For a copy in pieces: any number of bytes, mostly from what is set apart for that.  Never
  // empty.
  Result<PinnedBlock> TakePiece(const std::shared_ptr<DeviceDriver>& driver, int device,
                                size_t bytes);

  void Write(JsonWriter& json) const;  // members of an object

 private:
  friend class PinnedBlock;
  void GiveBack(PinnedMemory memory, size_t bytes);
  // `least`: what an idle block has at least, if there is neither one of `bytes` nor room.
  Result<PinnedBlock> TakeWithin(size_t limit, const std::shared_ptr<DeviceDriver>& driver,
                                 int device, size_t bytes, size_t least);
  // Frees what is idle, so that other sizes find room.  Aside: freeing waits for all that the
  // device has to do, which may be a kernel that ends only when the calling thread goes on.
  void FreeIdle() RABIT_REQUIRES(mutex_);

  const size_t limit_;
  mutable Mutex mutex_;
  std::multimap<size_t, PinnedMemory> idle_ RABIT_GUARDED_BY(mutex_);  // by bytes
  size_t held_ RABIT_GUARDED_BY(mutex_) = 0;                           // idle and in use
  size_t held_max_ RABIT_GUARDED_BY(mutex_) = 0;
  int64_t without_room_ RABIT_GUARDED_BY(mutex_) = 0;
  bool is_freeing_ RABIT_GUARDED_BY(mutex_) = false;
  std::thread freeing_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit

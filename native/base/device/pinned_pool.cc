#include "base/device/pinned_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <utility>

namespace rabit {
namespace {

// So many pieces fit into the part of the budget that is theirs.
constexpr size_t kPiecesMax = 32;
constexpr size_t kPieceBytesMax = 1 << 20;
constexpr size_t kPieceShare = 8;  // of the budget
constexpr size_t kBlockBytesMin = 4096;

// Four sizes for each power of two: buckets of about the same size use the same blocks, and at most
// a quarter of a block is unused.
size_t BlockBytes(size_t bytes) {
  const size_t step = std::bit_floor(std::max(bytes, kBlockBytesMin)) / 4;
  return (std::max(bytes, kBlockBytesMin) + step - 1) / step * step;
}

}  // namespace

PinnedBlock& PinnedBlock::operator=(PinnedBlock&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedBlock::~PinnedBlock() {
  if (memory_) pool_->GiveBack(std::move(memory_), bytes_);
}

PinnedPool::~PinnedPool() {
  if (freeing_.joinable()) freeing_.join();
}

Result<PinnedBlock> PinnedPool::Take(const std::shared_ptr<DeviceDriver>& driver, int device,
                                     size_t bytes) {
  const size_t block_bytes = BlockBytes(bytes);
  return TakeWithin(limit_ - limit_ / kPieceShare, driver, device, block_bytes, block_bytes);
}

Result<PinnedBlock> PinnedPool::TakePiece(const std::shared_ptr<DeviceDriver>& driver, int device,
                                          size_t bytes) {
  const size_t share = limit_ / kPieceShare / kPiecesMax / kBlockBytesMin * kBlockBytesMin;
  const size_t piece = std::clamp(share, kBlockBytesMin, kPieceBytesMax);
  RABIT_ASSIGN_OR_RETURN(
      PinnedBlock block,
      TakeWithin(limit_, driver, device, std::min(BlockBytes(bytes), piece), kBlockBytesMin));
  if (block) return block;
  return TakeAnyway(driver, device, kBlockBytesMin);
}

Result<PinnedBlock> PinnedPool::TakeAnyway(const std::shared_ptr<DeviceDriver>& driver, int device,
                                           size_t bytes) {
  RABIT_ASSIGN_OR_RETURN(PinnedBlock block, Take(driver, device, bytes));
  if (block) return block;
  const size_t block_bytes = BlockBytes(bytes);
  return TakeWithin(std::numeric_limits<size_t>::max(), driver, device, block_bytes, block_bytes);
}

Result<PinnedBlock> PinnedPool::TakeWithin(size_t limit,
                                           const std::shared_ptr<DeviceDriver>& driver, int device,
                                           size_t bytes, size_t least) {
  {
    MutexLock lock(mutex_);
    // A larger block is taken only when there is no room for a new one: it would be missing to
    // those who need its size, and they could not grow.
    auto idle = idle_.find(bytes);
    if (idle == idle_.end() && held_ + bytes > limit) {
      idle = idle_.lower_bound(bytes);
      if (idle == idle_.end() && !idle_.empty() && std::prev(idle)->first >= least) --idle;
    }
    if (idle != idle_.end()) {
      PinnedBlock block(shared_from_this(), std::move(idle->second), idle->first);
      idle_.erase(idle);
      return block;
    }
    if (held_ + bytes > limit) {
      ++without_room_;
      if (bytes <= limit) FreeIdle();  // more than that never finds room
      return PinnedBlock();
    }
    held_ += bytes;  // before it is allocated, or others would exceed the budget meanwhile
    held_max_ = std::max(held_max_, held_);
  }
  // Allocating may wait for the device, so it holds no lock.
  Result<PinnedMemory> memory = MakePinned(driver, device, bytes);
  if (memory.ok()) return PinnedBlock(shared_from_this(), std::move(*memory), bytes);
  MutexLock lock(mutex_);
  held_ -= bytes;
  return memory.status();
}

void PinnedPool::GiveBack(PinnedMemory memory, size_t bytes) {
  MutexLock lock(mutex_);
  idle_.emplace(bytes, std::move(memory));
}

void PinnedPool::FreeIdle() {
  if (is_freeing_ || idle_.empty()) return;
  // The thread before has set is_freeing_ back as its last act under the lock, so it ends now.
  if (freeing_.joinable()) freeing_.join();
  is_freeing_ = true;
  freeing_ = std::thread([this, idle = std::exchange(idle_, {})]() mutable {
    size_t bytes = 0;
    for (const auto& [block_bytes, memory] : idle) bytes += block_bytes;
    idle.clear();
    MutexLock lock(mutex_);
    held_ -= bytes;
    is_freeing_ = false;
  });
}

void PinnedPool::Write(JsonWriter& json) const {
  MutexLock lock(mutex_);
  json.Member("limit_bytes", limit_)
      .Member("held_bytes", held_)
      .Member("held_bytes_max", held_max_);
  json.Member("without_room", without_room_);
}

}  // namespace rabit

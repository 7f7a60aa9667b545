// ChoiceMemory: algorithms that were chosen before.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/ids.h"

namespace rabit {

// A choice by cost compares some ten models, which takes longer than all else around a small
// tensor, and a training step makes the same choices again and again.  Each entry is one word, so
// that readers need no lock; two choices that meet at one entry replace each other.  Thread-safe.
class ChoiceMemory {
 public:
  static constexpr int kUnknown = -1;

  // The index that was kept for these arguments, or kUnknown.
  int Find(GroupId group, DType dtype, int64_t bytes) const {
    const uint64_t key = KeyOf(group, dtype, bytes);
    const uint64_t entry = EntryOf(key).load(std::memory_order_relaxed);
    return entry >> kIndexBits == key ? static_cast<int>(entry & kIndexMask) - 1 : kUnknown;
  }

  // `index`: 0 to kIndexMax.
  void Keep(GroupId group, DType dtype, int64_t bytes, int index) {
    const uint64_t key = KeyOf(group, dtype, bytes);
    if (key == kNoKey) return;
    EntryOf(key).store(key << kIndexBits | static_cast<uint64_t>(index + 1),
                       std::memory_order_relaxed);
  }

  // No choice may be under way.
  void Clear() {
    for (std::atomic<uint64_t>& entry : entries_) entry.store(0, std::memory_order_relaxed);
  }

  static constexpr int kIndexMax = 14;

 private:
  static constexpr int kIndexBits = 4;
  static constexpr uint64_t kIndexMask = (1 << kIndexBits) - 1;
  static constexpr int kBytesBits = 40;
  static constexpr int kGroupBits = 16;
  static constexpr int kDTypeBits = 4;
  static_assert(kIndexBits + kBytesBits + kGroupBits + kDTypeBits == 64);
  static_assert(kDTypeCount <= 1 << kDTypeBits);
  // Of what does not fit into a key; no entry has it, because nothing is kept under it.
  static constexpr uint64_t kNoKey = ~uint64_t{0} >> kIndexBits;

  static uint64_t KeyOf(GroupId group, DType dtype, int64_t bytes) {
    const auto size = static_cast<uint64_t>(bytes);
    const auto number = static_cast<uint64_t>(group);
    if (size >> kBytesBits != 0 || number >> kGroupBits != 0) return kNoKey;
    return size | number << kBytesBits | static_cast<uint64_t>(dtype) << (kBytesBits + kGroupBits);
  }
  // The low bits of the product depend on few bits of the key, the high ones on all.
  static size_t IndexOf(uint64_t key) { return (key * 0x9e3779b97f4a7c15) >> (64 - 8); }
  const std::atomic<uint64_t>& EntryOf(uint64_t key) const { return entries_[IndexOf(key)]; }
  std::atomic<uint64_t>& EntryOf(uint64_t key) { return entries_[IndexOf(key)]; }

  std::array<std::atomic<uint64_t>, 256> entries_{};
};

}  // namespace rabit

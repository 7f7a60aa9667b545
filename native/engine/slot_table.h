// SlotTable: objects by small numbers that are used again.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace rabit {

// Adding and taking cost no allocation once the table has been as full as it gets.  Numbers follow
// from the sequence of calls alone: tables that see the same calls give out the same.  One thread.
template <class T>
class SlotTable {
 public:
  int32_t Add(T value) {
    ++count_;
    if (free_.empty()) {
      slots_.emplace_back(std::move(value));
      return static_cast<int32_t>(slots_.size()) - 1;
    }
    const int32_t slot = free_.back();
    free_.pop_back();
    slots_[static_cast<size_t>(slot)].emplace(std::move(value));
    return slot;
  }

  // Null: nothing is there.
  T* Find(int32_t slot) {
    if (slot < 0 || static_cast<size_t>(slot) >= slots_.size()) return nullptr;
    std::optional<T>& found = slots_[static_cast<size_t>(slot)];
    return found ? &*found : nullptr;
  }

  // Only what Find finds.
  T Take(int32_t slot) {
    T taken = *std::move(slots_[static_cast<size_t>(slot)]);
    slots_[static_cast<size_t>(slot)].reset();
    free_.push_back(slot);
    --count_;
    return taken;
  }

  template <class F>
  void ForEach(F f) const {
    for (const std::optional<T>& each : slots_)
      if (each) f(*each);
  }

  void Clear() {
    slots_.clear();
    free_.clear();
    count_ = 0;
  }

  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }

 private:
  std::vector<std::optional<T>> slots_;
  std::vector<int32_t> free_;
  size_t count_ = 0;
};

}  // namespace rabit

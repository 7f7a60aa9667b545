// RankSet: global ranks as bits, without the empty words in front.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rabit {

class RankSet {
 public:
  RankSet() = default;
  explicit RankSet(int rank) { Add(rank); }
  explicit RankSet(std::span<const int> ranks) {
    for (int rank : ranks) Add(rank);
  }

  void Add(int rank) {
    uint64_t& word = WordOf(static_cast<size_t>(rank) / 64);
    const uint64_t bit = uint64_t{1} << (rank % 64);
    count_ += (word & bit) == 0 ? 1 : 0;
    word |= bit;
  }
  void Add(const RankSet& other) {
    if (other.empty()) return;
    (void)WordOf(other.first_);
    (void)WordOf(other.first_ + other.words_.size() - 1);
    for (size_t i = 0; i < other.words_.size(); ++i) {
      uint64_t& word = words_[other.first_ + i - first_];
      count_ += std::popcount(other.words_[i] & ~word);
      word |= other.words_[i];
    }
  }
  void Clear() {
    std::fill(words_.begin(), words_.end(), 0);
    count_ = 0;
  }

  int count() const { return count_; }
  bool empty() const { return count_ == 0; }
  bool Contains(int rank) const {
    return (Word(static_cast<size_t>(rank) / 64) >> (rank % 64) & 1) != 0;
  }
  bool Contains(const RankSet& other) const { return CountCommon(other) == other.count_; }
  int CountCommon(const RankSet& other) const {
    int common = 0;
    for (size_t i = 0; i < other.words_.size(); ++i)
      common += std::popcount(other.words_[i] & Word(other.first_ + i));
    return common;
  }
  // -1: empty.
  int lowest() const {
    for (size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] != 0) return static_cast<int>((first_ + i) * 64) + std::countr_zero(words_[i]);
    }
    return -1;
  }

  // In ascending order.
  template <class F>
  void ForEach(F f) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t word = words_[i]; word != 0; word &= word - 1)
        f(static_cast<int>((first_ + i) * 64) + std::countr_zero(word));
    }
  }
  std::vector<int> ranks() const {
    std::vector<int> list;
    list.reserve(static_cast<size_t>(count_));
    ForEach([&](int rank) { list.push_back(rank); });
    return list;
  }

  bool operator==(const RankSet& other) const { return count_ == other.count_ && Contains(other); }

 private:
  uint64_t Word(size_t index) const {
    return index < first_ || index - first_ >= words_.size() ? 0 : words_[index - first_];
  }
  uint64_t& WordOf(size_t index) {
    if (words_.empty()) first_ = index;
    if (index < first_) {
      words_.insert(words_.begin(), first_ - index, 0);
      first_ = index;
    }
    if (index - first_ >= words_.size()) words_.resize(index - first_ + 1);
    return words_[index - first_];
  }

  size_t first_ = 0;  // index of words_[0]
  std::vector<uint64_t> words_;
  int count_ = 0;
};

}  // namespace rabit

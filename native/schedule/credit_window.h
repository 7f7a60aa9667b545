// CreditWindow: the bytes that are issued and not yet done on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace rabit {

// Credit comes from the agreement, not from this rank: ranks would otherwise issue different
// orders and hang.
class CreditWindow {
 public:
  explicit CreditWindow(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Buckets with ids below `buckets_done` are done everywhere.  A smaller number changes nothing.
  void Return(uint64_t buckets_done) {
    while (!issued_.empty() && first_ < buckets_done) {
      in_flight_bytes_ -= issued_.front();
      issued_.pop_front();
      ++first_;
    }
  }

  // A bucket larger than the whole window runs, but alone.
  bool Admits(int64_t bytes) const {
    return limit_bytes_ <= 0 || issued_.empty() || in_flight_bytes_ + bytes <= limit_bytes_;
  }

  // What is in flight stays counted: a smaller window admits nothing until enough of it is done.
  void SetLimit(int64_t limit_bytes) { limit_bytes_ = limit_bytes; }

  uint64_t next_id() const { return first_ + issued_.size(); }
  size_t in_flight() const { return issued_.size(); }  // buckets
  int64_t in_flight_bytes() const { return in_flight_bytes_; }

  void Issue(int64_t bytes) {
    issued_.push_back(bytes);
    in_flight_bytes_ += bytes;
  }

 private:
  int64_t limit_bytes_;
  std::deque<int64_t> issued_;  // bytes of bucket first_, first_ + 1, …
  uint64_t first_ = 0;
  int64_t in_flight_bytes_ = 0;
};

}  // namespace rabit

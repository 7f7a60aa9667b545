// VirtualTime: a clock that stands still until the next event, and the events to come.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace rabit::testing {

// One thread.  Events of one time happen in the order in which they were asked for, so a run
// depends on nothing but what its events do.
class VirtualTime final : public Clock {
 public:
  using Event = std::function<void()>;

  Deadline Now() const override { return now_; }

  // A time that has passed already means at once, after what is due now.
  void At(Deadline when, Event event) {
    events_.push_back({std::max(when, now_), next_number_++, std::move(event)});
    std::push_heap(events_.begin(), events_.end());
  }
  void In(std::chrono::microseconds delay, Event event) { At(now_ + delay, std::move(event)); }

  bool has_events() const { return !events_.empty(); }
  Deadline next() const { return events_.front().when; }
  uint64_t happened() const { return happened_; }

  // The first event, at its time.
  void RunNext() {
    std::pop_heap(events_.begin(), events_.end());
    const Entry entry = std::move(events_.back());
    events_.pop_back();
    now_ = entry.when;
    ++happened_;
    entry.event();
  }

 private:
  struct Entry {
    Deadline when;
    uint64_t number;
    Event event;
    bool operator<(const Entry& other) const {  // the heap's top is the first to happen
      return std::pair(other.when, other.number) < std::pair(when, number);
    }
  };

  // Away from zero, which stands for "never yet" in several places.
  Deadline now_{std::chrono::seconds(1000)};
  std::vector<Entry> events_;
  uint64_t next_number_ = 0;
  uint64_t happened_ = 0;
};

}  // namespace rabit::testing

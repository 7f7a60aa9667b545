// CallStatistics: how often and for how long each algorithm runs.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/json_writer.h"

namespace rabit {

struct CallCounter {
  uint64_t calls = 0;
  uint64_t bytes = 0;
  uint64_t busy_us = 0;
};

// Thread-safe.
class CallStatistics {
 public:
  // `algorithm` must outlive the statistics; empty: the kind has but one.
  void Add(Kind kind, std::string_view algorithm, uint64_t bytes, uint64_t busy_us) {
    std::lock_guard lock(mutex_);
    CallCounter& counter = CounterOf(kind, algorithm);
    counter.calls += 1;
    counter.bytes += bytes;
    counter.busy_us += busy_us;
  }

  // By "allreduce/ring", in alphabetical order.
  void Write(JsonWriter& json) const {
    std::map<std::string, CallCounter> by_name;
    {
      std::lock_guard lock(mutex_);
      for (const Entry& entry : entries_) by_name[entry.name()] = entry.counter;
    }
    json.BeginObject();
    for (const auto& [what, counter] : by_name) {
      json.Key(what).BeginObject().Member("calls", counter.calls).Member("bytes", counter.bytes);
      json.Member("busy_us", counter.busy_us).EndObject();
    }
    json.EndObject();
  }

 private:
  struct Entry {
    Kind kind;
    std::string_view algorithm;
    CallCounter counter;

    std::string name() const {
      std::string text(Name(kind));
      if (!algorithm.empty()) text.append("/").append(algorithm);
      return text;
    }
  };

  // A handful: looking through them is faster than building a name.
  CallCounter& CounterOf(Kind kind, std::string_view algorithm) {
    for (Entry& entry : entries_) {
      if (entry.kind == kind && entry.algorithm == algorithm) return entry.counter;
    }
    return entries_.emplace_back(Entry{kind, algorithm, {}}).counter;
  }

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // guarded by mutex_
};

}  // namespace rabit

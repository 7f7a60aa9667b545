// CallStatistics: how often and for how long each algorithm runs.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace rabit {

struct CallCounter {
  uint64_t calls = 0;
  uint64_t bytes = 0;
  uint64_t busy_us = 0;
};

// Thread-safe.
class CallStatistics {
 public:
  // `what` is "allreduce/ring": the kind and its algorithm.
  void Add(const std::string& what, uint64_t bytes, uint64_t busy_us) {
    std::lock_guard lock(mutex_);
    CallCounter& counter = counters_[what];
    counter.calls += 1;
    counter.bytes += bytes;
    counter.busy_us += busy_us;
  }

  std::string ToJson() const {
    std::lock_guard lock(mutex_);
    std::string json = "{";
    for (const auto& [what, counter] : counters_) {
      if (json.size() > 1) json += ",";
      json += "\"" + what + "\":{\"calls\":" + std::to_string(counter.calls) +
              ",\"bytes\":" + std::to_string(counter.bytes) +
              ",\"busy_us\":" + std::to_string(counter.busy_us) + "}";
    }
    return json + "}";
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, CallCounter> counters_;
};

}  // namespace rabit

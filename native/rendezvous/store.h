// Store: how ranks find each other.  A small key-value board with waiting reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"

namespace rabit {

// What a key holds.  The version counts how often it was set: 0 says that it was never.
struct Versioned {
  uint64_t version = 0;
  std::string value;
};

// What a key holds after a CompareAndSet, and whether that is what this call put there.
struct Swap {
  bool is_mine = false;
  Versioned held;
};

// Thread-safe.  Keys are at most 256 bytes, values at most 64 KiB.
class Store {
 public:
  virtual ~Store() = default;
  virtual Status Set(std::string_view key, std::string_view value) = 0;
  // Waits until the key has a higher version than `seen`.  kTimedOut names the key.
  virtual Result<Versioned> Watch(std::string_view key, uint64_t seen, Deadline deadline) = 0;
  // Sets the key if it has this version still; 0: if it was never set.
  virtual Result<Swap> CompareAndSet(std::string_view key, uint64_t version,
                                     std::string_view value) = 0;

  // Waits until the key exists.
  Result<std::string> Get(std::string_view key, Deadline deadline) {
    RABIT_ASSIGN_OR_RETURN(Versioned found, Watch(key, 0, deadline));
    return std::move(found.value);
  }
  // Sets the key unless it exists; its value then.
  Result<std::string> SetOnce(std::string_view key, std::string_view value) {
    RABIT_ASSIGN_OR_RETURN(Swap swap, CompareAndSet(key, 0, value));
    return std::move(swap.held.value);
  }
};

}  // namespace rabit

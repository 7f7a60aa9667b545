// Store: how ranks find each other.  A small key-value board with waiting reads.
#pragma once

#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"

namespace rabit {

// Thread-safe.  Keys are at most 256 bytes, values at most 64 KiB.
class Store {
 public:
  virtual ~Store() = default;
  virtual Status Set(std::string_view key, std::string_view value) = 0;
  // Waits until the key exists.  kTimedOut names the key.
  virtual Result<std::string> Get(std::string_view key, Deadline deadline) = 0;
  // Sets the key unless it exists; its value then.
  virtual Result<std::string> SetOnce(std::string_view key, std::string_view value) = 0;
  // Adds to a counter (absent = 0) and returns the new value.
  virtual Result<int64_t> Add(std::string_view key, int64_t amount) = 0;
};

}  // namespace rabit

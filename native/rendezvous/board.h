// Board: the keys and values of a store, bounded.  What StoreServer serves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/status.h"
#include "rendezvous/store.h"

namespace rabit {

inline constexpr size_t kStoreKeyBytesMax = 256;
inline constexpr size_t kStoreValueBytesMax = 64 * 1024;
// Of all keys and values together, with what an entry costs besides.
inline constexpr size_t kStoreTotalBytesMax = 256 * 1024 * 1024;

// Whether a store takes this key: 1 to kStoreKeyBytesMax bytes.
Status CheckStoreKey(std::string_view key);

// What a Watch that has waited in vain returns.
Status NotSetInTime(std::string_view key, uint64_t seen);

// One thread at a time; never waits.
class Board {
 public:
  explicit Board(size_t total_bytes_max = kStoreTotalBytesMax)
      : total_bytes_max_(total_bytes_max) {}

  Status Set(std::string_view key, std::string_view value);
  // As Store::CompareAndSet.
  Result<Swap> CompareAndSet(std::string_view key, uint64_t version, std::string_view value);
  // Null if absent; valid until the next change.
  const Versioned* Find(std::string_view key) const;
  // Removes every key that begins with `prefix`, but not `kept`.
  void Forget(std::string_view prefix, std::string_view kept);

 private:
  const size_t total_bytes_max_;
  size_t total_bytes_ = 0;
  std::map<std::string, Versioned, std::less<>> entries_;
};

}  // namespace rabit

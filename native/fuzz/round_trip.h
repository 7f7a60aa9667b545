// What every decoder owes: it refuses bytes, or what it read can be written and read again,
// unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"

namespace rabit::fuzz {

inline ConstBytes AsBytes(const uint8_t* data, size_t size) {
  return std::as_bytes(std::span(data, size));
}

// `decode(bytes)` gives a Result, `encode(message)` a vector of bytes.  The bytes themselves may
// come back different, because a number has more than one spelling.
template <class Decode, class Encode>
void CheckRoundTrip(ConstBytes bytes, Decode decode, Encode encode) {
  const auto first = decode(bytes);
  if (!first.ok()) return;
  const std::vector<std::byte> written = encode(*first);
  const auto second = decode(ConstBytes(written));
  RABIT_CHECK(second.ok(),
              "a decoder refuses what it read and wrote itself: " + second.status().message());
  RABIT_CHECK(encode(*second) == written, "a message changes when it is read and written again");
}

}  // namespace rabit::fuzz

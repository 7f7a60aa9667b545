// Loops of tests over memory that no other thread knows: what a test sends, and what it expects to see.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"

// Tests are compiled without optimisation, and a sanitizer looks at every byte that they touch.  A
// function with this mark is not watched, and GCC compiles it as in a release build; so it must
// neither touch memory of other threads nor synchronise with any.
#if defined(__clang__)
#define RABIT_OWN_MEMORY [[gnu::noinline, clang::no_sanitize("thread", "address", "undefined")]]
#else
#define RABIT_OWN_MEMORY \
  [[gnu::noinline, gnu::optimize("O2"), gnu::no_sanitize("thread", "address", "undefined")]]
#endif

namespace rabit::testing {

RABIT_OWN_MEMORY inline void FillPattern(std::byte* at, size_t bytes, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (size_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    at[i] = static_cast<std::byte>(state >> 56);
  }
}

// Bytes that depend on every argument, so that a byte of another message or place shows.
inline std::vector<std::byte> Pattern(size_t bytes, uint64_t seed) {
  std::vector<std::byte> buffer(bytes);
  FillPattern(buffer.data(), bytes, seed);
  return buffer;
}

}  // namespace rabit::testing

// Which sanitizer the tests run under; each makes them slower by an order of magnitude.
#pragma once

namespace rabit::testing {

// GCC tells it by macros, Clang by features.
#if defined(__has_feature)
inline constexpr bool kIsThreadSanitized = __has_feature(thread_sanitizer);
inline constexpr bool kIsAddressSanitized = __has_feature(address_sanitizer);
#else
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kIsThreadSanitized = true;
#else
inline constexpr bool kIsThreadSanitized = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsAddressSanitized = true;
#else
inline constexpr bool kIsAddressSanitized = false;
#endif
#endif
inline constexpr bool kIsSanitized = kIsThreadSanitized || kIsAddressSanitized;

// Of cases that differ by a seed, a moment or a size alone, the ordinary build runs all, and one
// with a sanitizer every fourth: what it finds, it finds in any that takes the same way through the
// code.
inline constexpr int kStride = kIsSanitized ? 4 : 1;

// How many of so many repetitions are run.
inline constexpr int Repetitions(int all) { return (all + kStride - 1) / kStride; }

// Of those that one thread runs.  ThreadSanitizer finds no race there: a tenth is enough to see
// that it works.
inline constexpr int SimulatedRounds(int all) {
  return kIsThreadSanitized ? (all + 9) / 10 : Repetitions(all);
}

}  // namespace rabit::testing

// Which sanitizer the tests run under; each makes them slower by an order of magnitude.
#pragma once

namespace rabit::testing {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kIsThreadSanitized = true;
#else
inline constexpr bool kIsThreadSanitized = false;
#endif

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = kIsThreadSanitized;
#endif

// Rounds of a simulation that one thread runs.  There is no race to be found in it: under
// ThreadSanitizer a tenth is enough to see that it works, and the other builds run all.
inline constexpr int SimulatedRounds(int rounds) {
  return kIsThreadSanitized ? (rounds + 9) / 10 : rounds;
}

}  // namespace rabit::testing
